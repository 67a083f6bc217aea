"""Where the product keeps what it makes once: demo models, libraries."""

import os
from pathlib import Path


def home() -> Path:
    """`$KVSWARM_HOME`, or a folder in the user's cache."""
    given = os.environ.get("KVSWARM_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "kvswarm"
