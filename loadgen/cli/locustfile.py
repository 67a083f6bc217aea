"""Which locustfile is meant: a path, or the name of a shipped one."""

from importlib.util import find_spec
from pathlib import Path

from loadgen.errors import UsageError


def find_locustfile(name: str) -> Path:
    """The file at a path, or the shipped one of that name; UsageError lists those there are."""
    path = Path(name)
    if path.is_file():
        return path
    found = find_spec("locustfiles")
    folder = Path(found.origin or "").parent if found else Path()
    shipped = folder / f"{name.removesuffix('.py')}.py"
    if shipped.parent.is_dir() and "/" not in name and shipped.is_file():
        return shipped
    names = ", ".join(sorted(p.stem for p in shipped.parent.glob("[a-z]*.py")))
    raise UsageError(f"no locustfile {name!r}: give a path, or one of the shipped: {names}")
