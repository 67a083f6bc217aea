"""TLS over a connection whose bytes come with their time (RFC 8446; `ssl.MemoryBIO`).

What is deciphered has the time at which the last bytes of its record reached this machine.
"""

import asyncio
import ssl
from collections.abc import Iterator
from typing import Any

from loadgen.client.stamped_transport import READ_BYTES, Arrivals, Receiver, connect


async def connect_by_tls(
    address: str,
    port: int,
    receiver: Receiver,
    arrivals: Arrivals,
    context: ssl.SSLContext,
    server_name: str,
) -> None:
    """Open a connection to an IP address and shake hands. Raises OSError, ssl.SSLError included."""
    layer = TlsLayer(receiver, context, server_name)
    await connect(address, port, layer, arrivals)
    try:
        await layer.opened
    except BaseException:
        layer.abort()
        raise


class TlsLayer(asyncio.Transport):
    """The receiver of what arrives, and the transport of the connection that it deciphers it for.

    That connection is told of its opening when both sides have shaken hands.
    """

    __slots__ = ("_incoming", "_outgoing", "_receiver", "_tls", "_transport", "opened")

    def __init__(self, receiver: Receiver, context: ssl.SSLContext, server_name: str) -> None:
        super().__init__()
        self._receiver = receiver
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._transport: Any = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        """See Receiver: the handshake begins."""
        self._transport = transport
        self._shake_hands()

    def receive(self, data: bytes, received_at: float) -> None:
        """See Receiver. Raises ssl.SSLError, which ends the connection, behind what came before."""
        self._incoming.write(data)
        if not self.opened.done() and not self._shake_hands():
            return
        pieces: list[bytes] = []
        try:
            pieces.extend(self._deciphered())
        finally:
            self._flush()
            if pieces:
                self._receiver.receive(b"".join(pieces), received_at)

    def connection_lost(self, error: Exception | None) -> None:
        """See Receiver."""
        if not self.opened.done():
            self.opened.set_exception(error or ConnectionResetError("hung up in the TLS handshake"))
        elif not self.opened.cancelled() and self.opened.exception() is None:
            self._receiver.connection_lost(error)

    def is_closing(self) -> bool:
        """See asyncio.BaseTransport."""
        return bool(self._transport.is_closing())

    def get_write_buffer_size(self) -> int:
        """See asyncio.WriteTransport."""
        return int(self._transport.get_write_buffer_size())

    def write(self, data: Any) -> None:
        """See asyncio.WriteTransport."""
        rest = memoryview(data)
        while rest:  # a record at a time
            rest = rest[self._tls.write(rest) :]
        self._flush()

    def abort(self) -> None:
        """See asyncio.WriteTransport."""
        self._transport.abort()

    def _shake_hands(self) -> bool:
        """Whether that is done. Raises ssl.SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:  # also what tells the other side why not
            self._flush()
        self.opened.set_result(None)
        self._receiver.connection_made(self)
        return True

    def _deciphered(self) -> Iterator[bytes]:
        """What has come whole; of the other side's farewell nothing, as it hangs up then."""
        try:
            while self._incoming.pending or self._tls.pending():
                if not (piece := self._tls.read(READ_BYTES)):
                    return
                yield piece
        except ssl.SSLWantReadError:
            return

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
