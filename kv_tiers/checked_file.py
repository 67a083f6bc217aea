"""Files of KV whose damage shows: behind the content is a checksum of it, its name and folder, and
of what kind it is."""

import os
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

SUM_BYTES = 4


def checksum(name: str, content: bytes | memoryview) -> bytes:
    """By CRC-32, as of the name and the content behind each other."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(SUM_BYTES, "little")


def write_whole(path: Path, *parts: bytes | memoryview) -> None:
    """Put a file in place, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    under_way = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with under_way.open("xb", buffering=0) as file:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[file.write(left) :]
        under_way.replace(path)
    except BaseException:
        with suppress(OSError):
            under_way.unlink()
        raise


def write_checked(path: Path, content: memoryview, kind: str = "") -> bool:
    """Put a file in place with its checksum; False where one is there, which is left. Raises
    OSError."""
    if path.exists():
        return False
    write_whole(path, content, checksum(_sealed_as(path, kind), content))
    return True


def read_checked(path: Path, buffer: memoryview, kind: str = "") -> bool | None:
    """Fill a buffer; None where there is no such file, False for one that is not whole or of
    another kind, which is removed. The buffer may hold anything then. Raises OSError for one that
    cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            is_full = _fill(file.fileno(), buffer)
            told = file.read(SUM_BYTES + 1)
    except FileNotFoundError:
        return None
    if is_full and told == checksum(_sealed_as(path, kind), buffer):
        return True
    path.unlink(missing_ok=True)
    return False


def _sealed_as(path: Path, kind: str) -> str:
    return "/".join(path.parts[-2:]) + kind


def _fill(descriptor: int, buffer: memoryview) -> bool:
    """Whether there was as much to read."""
    while buffer:
        count = os.readv(descriptor, [buffer])
        if not count:
            return False
        buffer = buffer[count:]
    return True
