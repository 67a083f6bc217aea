"""WSGI applications for their own user's pages alone: Locust's web UI, and what is exported."""

from collections.abc import Callable, Iterable
from typing import Any

from rag_store.service.foreign import OwnNames, RequestSource

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_CLOSED = (("X-Frame-Options", "SAMEORIGIN"), ("Cross-Origin-Resource-Policy", "same-origin"))


def own_page_only(app: WsgiApp, names: OwnNames) -> WsgiApp:
    """`app` for requests of its user: others are told 403, and its answers are for no other page.

    That takes away what `app` itself allows to pages of others (CORS), and frames around it.
    """

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        refusal = names.refusal(_source(environ))
        if refusal is not None:
            body = f"{refusal.message}\n".encode()
            length = ("Content-Length", str(len(body)))
            start_response("403 Forbidden", [("Content-Type", "text/plain"), length, *_CLOSED])
            return [body]

        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            kept = [each for each in headers if not each[0].lower().startswith("access-control-")]
            return start_response(status, [*kept, *_CLOSED], *error)

        return app(environ, start)

    return guarded


def _source(environ: dict[str, Any]) -> RequestSource:
    """Of a WSGI request: servers join the values of a header by commas."""

    def values(header: str) -> list[str]:
        told = environ.get(f"HTTP_{header.upper().replace('-', '_')}")
        return [] if told is None else [each.strip() for each in told.split(",")]

    return RequestSource(environ["REQUEST_METHOD"], environ["PATH_INFO"], values)
