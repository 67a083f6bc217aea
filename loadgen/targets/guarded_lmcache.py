"""LMCache's own server, behind the guard of `own_routes`: `python -m` this module, its arguments.

Its HTTP routes empty the cache and read checksums for whoever asks, a page in a browser of this
machine included. The application is made when its module is imported, so that the guard can be put
before it from outside.
"""

from lmcache.cli.main import main
from lmcache.v1.multiprocess.http_server import app

from loadgen.targets.own_routes import OwnRoutes

if __name__ == "__main__":
    app.add_middleware(OwnRoutes)
    main()
