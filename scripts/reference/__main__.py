"""Writes docs/reference from the code; with --check it only compares."""

import sys
from collections.abc import Callable
from pathlib import Path

from scripts.reference.files import columns, exit_codes
from scripts.reference.interfaces import python, routes, targets
from scripts.reference.metrics import metrics
from scripts.reference.options import options

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "options": options,
    "columns": columns,
    "metrics": metrics,
    "exit-codes": exit_codes,
    "routes": routes,
    "targets": targets,
    "python": python,
}


def main() -> int:
    stale = []
    for name, make in PAGES.items():
        path, text = FOLDER / f"{name}.md", make()
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.stderr.write(f"docs/reference: {', '.join(stale)} not as made: run `make reference`\n")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
