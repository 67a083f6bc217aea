"""A chunk of HTTP/1.1's chunked coding (RFC 9112, 7.1) that has come alone and whole."""

import re
from functools import lru_cache

CRLF = b"\r\n"
MAX_SIZE_BYTES = 8
_SIZE = re.compile(rb"[0-9A-Fa-f]+")


def lone_chunk(data: bytes) -> bytes | None:
    """The content of the chunk that `data` is; None where it is not exactly one without extensions.

    The last chunk of a body, which is empty, is none of these.
    """
    size_end = data.find(CRLF, 0, MAX_SIZE_BYTES + 2)
    size = _size(data[:size_end]) if size_end > 0 else 0
    if not size or len(data) != size_end + 2 + size + 2 or not data.endswith(CRLF):
        return None
    return data[size_end + 2 : -2]


@lru_cache(maxsize=4096)
def _size(digits: bytes) -> int:
    return int(digits, 16) if _SIZE.fullmatch(digits) else 0
