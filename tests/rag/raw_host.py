"""A server that answers whatever it is told to, HTTP or not."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raw_host(reply: bytes, asked: list[bytes] | None = None) -> Iterator[str]:
    """The url of a server that answers with these bytes and hangs up; `asked` gets what came."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            came = self.request.recv(1 << 16)
            if asked is not None:
                asked.append(came)
            self.request.sendall(reply)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def http(status: int, page: str) -> bytes:
    """A reply with a page."""
    return f"HTTP/1.1 {status} Told\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode()
