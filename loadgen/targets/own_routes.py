"""Which routes of a service that we start are for everybody: all others take a key of ours.

vLLM's development mode, without which no cache can be emptied, opens routes to whatever page is in
a browser of this machine: they empty the cache or call any method of the workers. LMCache and
transformers always have such.
vLLM takes ASGI middleware by `--middleware`; this is such a class, imported in its process.
"""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "KVSWARM_ROUTES_KEY"
KEY_HEADER = "X-Kvswarm-Key"
NAME_VARIABLE = "KVSWARM_ENGINE"
NAME_HEADER = b"x-served-by"
"""Of several engines each says by it which one it is."""
PUBLIC = ("/v1/", "/v2/", "/metrics", "/docs", "/redoc")
"""What they begin with."""
PUBLIC_ROUTES = frozenset(
    {
        *("/health", "/healthcheck", "/ping", "/version", "/load", "/openapi.json", "/invocations"),
        *("/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank"),
    }
)

Message = MutableMapping[str, Any]
AsgiApp = Callable[[Message, Callable[..., Any], Callable[..., Any]], Awaitable[None]]


class OwnRoutes:
    """Answers 403 for routes that are not public, unless the request has the key.

    Raises KeyError at its making where the process has none.
    """

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._key = os.environ[KEY_VARIABLE].encode()
        self._name = os.environ.get(NAME_VARIABLE, "").encode()

    async def __call__(
        self, scope: Message, receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        """As any ASGI application."""
        if scope["type"] == "lifespan" or is_public(scope["path"]) or self._has_key(scope):
            await self._app(scope, receive, self._named(send) if self._name else send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            said = b"this route is for the kvswarm that started this server\n"
            await send({"type": "http.response.body", "body": said})

    def _named(self, send: Callable[..., Any]) -> Callable[..., Any]:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (NAME_HEADER, self._name)]
                message = {**message, "headers": headers}
            await send(message)

        return sent

    def _has_key(self, scope: Message) -> bool:
        name = KEY_HEADER.lower().encode()
        given = [value for key, value in scope["headers"] if key == name]
        return len(given) == 1 and hmac.compare_digest(given[0], self._key)


def is_public(path: str) -> bool:
    """Whether anybody may ask for it."""
    return path in PUBLIC_ROUTES or path.startswith(PUBLIC)
