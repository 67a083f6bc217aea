"""Files of KV whose damage shows: behind the content stands a checksum of it and of its name."""

import os
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

SUM_BYTES = 4


def write_checked(path: Path, content: memoryview) -> bool:
    """Put a file in place, whole or not at all; False where one is there, which is left. Raises
    OSError."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    under_way = path.with_suffix(f".{secrets.token_hex(8)}.tmp")
    try:
        with under_way.open("xb", buffering=0) as file:
            if os.writev(file.fileno(), [content, _sum(path, content)]) < len(content) + SUM_BYTES:
                raise OSError(f"{under_way} took not all that was written")
        under_way.replace(path)
    except BaseException:
        with suppress(OSError):
            under_way.unlink()
        raise
    return True


def read_checked(path: Path, buffer: memoryview) -> bool:
    """Fill a buffer; False where there is no such file, and for one that is not whole, which is
    removed. The buffer may hold anything then. Raises OSError for one that cannot be read."""
    told = bytearray(SUM_BYTES + 1)
    try:
        with path.open("rb", buffering=0) as file:
            count = os.readv(file.fileno(), [buffer, told])
    except FileNotFoundError:
        return False
    if count == len(buffer) + SUM_BYTES and told[:SUM_BYTES] == _sum(path, buffer):
        return True
    path.unlink(missing_ok=True)
    return False


def _sum(path: Path, content: memoryview) -> bytes:
    """By CRC-32, as of the name and the content behind each other."""
    return zlib.crc32(content, zlib.crc32(path.name.encode())).to_bytes(SUM_BYTES, "little")
