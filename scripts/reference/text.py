"""Markdown of what the code says."""

import ast
import inspect
import itertools
import re
from collections.abc import Iterable, Sequence
from types import ModuleType

MADE = "<!-- Made by `make reference` -->"
Row = Sequence[str]


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", MADE, *(part for part in parts if part)]) + "\n"


def table(head: Row, rows: Iterable[Row]) -> str:
    """Rows whose last cell is a sentence."""
    said = ([*row[:-1], row[-1][:1].upper() + row[-1][1:]] for row in rows)
    lines = [head, *said]
    escaped = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    first, *rest = (f"| {' | '.join(line)} |".replace("  ", " ") for line in escaped)
    return "\n".join([first, "|---" * len(head) + "|", *rest])


def listing(rows: Iterable[Row]) -> str:
    """Names, each with its meaning, a sentence."""
    said = (f"{name}: {what[:1].upper()}{what[1:]}" if what else name for name, what in rows)
    return "\n".join(f"- {' '.join(each.split())}" for each in said)


def code(name: object) -> str:
    return f"`{name}`"


def bracketed(name: str, note: str) -> str:
    return f"{name} ({note})" if note else name


def phrase(text: str | None) -> str:
    """The first sentence of a docstring."""
    words = " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[a-z)`\"])\. (?=[A-Z])", words)[0].rstrip(".:")


def meanings(module: ModuleType, of: str = "") -> dict[str, str]:
    """Names of a module, or of a class in it, with the docstrings below them."""
    body = ast.parse(inspect.getsource(module)).body
    if of:
        body = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == of).body
    found = {}
    for node, below in itertools.pairwise(body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            found |= {
                n.id: inspect.cleandoc(below.value.value) for n in targets if hasattr(n, "id")
            }
    return {name: " ".join(text.split()).rstrip(".") for name, text in found.items()}
