"""Free TCP ports on this machine."""

import socket
from contextlib import ExitStack

from loadgen.errors import UsageError
from loadgen.targets.settings import LOOPBACK


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that nobody listened on a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        # All are held at once, or the system could hand out one port twice.
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [sock.getsockname()[1] for sock in sockets]


def require_free(host: str, port: int) -> int:
    """`port`, or UsageError when it cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --bind or --port"
            ) from error
    return port
