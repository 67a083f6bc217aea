"""`transformers serve` behind the guard of `own_routes`: `python -m` this module, its arguments.

Its routes outside of `/v1` load models and give them up for whoever asks, a page in a browser of
this machine included. The application is made by its command, so that its maker is replaced.
"""

from typing import Any

from transformers.cli.serving import server
from transformers.cli.transformers import main

from loadgen.targets.own_routes import OwnRoutes

build_server = server.build_server


def guarded(*handlers: Any, **settings: Any) -> Any:
    """The application as it is, with the guard before it."""
    app = build_server(*handlers, **settings)
    app.add_middleware(OwnRoutes)
    return app


if __name__ == "__main__":
    server.build_server = guarded
    main()
