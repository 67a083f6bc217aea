"""Which locustfile is meant: a path, or the name of a shipped one."""

from importlib import resources
from pathlib import Path

from loadgen.errors import UsageError


def find_locustfile(name: str) -> Path:
    """The file at a path, or the shipped one of that name; UsageError lists those there are."""
    path = Path(name)
    if path.is_file():
        return path
    shipped = Path(str(resources.files("locustfiles"))) / f"{name.removesuffix('.py')}.py"
    if shipped.parent.is_dir() and "/" not in name and shipped.is_file():
        return shipped
    names = ", ".join(sorted(p.stem for p in shipped.parent.glob("[a-z]*.py")))
    raise UsageError(f"no locustfile {name!r}: give a path, or one of the shipped: {names}")
