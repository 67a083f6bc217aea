"""The rules of the house, over every module of the product. The lists of exceptions only shrink."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = (
    "locustfiles",
    "kvswarm",
    "loadgen.cli",
    "loadgen.launch",
    "dashboards",
    "loadgen.swarm",
    "loadgen.twin",
    "loadgen.saturate",
    "loadgen.sweep",
    "loadgen.compare",
    "loadgen.locality",
    "loadgen.targets",
    "loadgen.runs",
    "loadgen.stats",
    "loadgen.client",
    "loadgen.workload",
    "loadgen.record",
    "loadgen.context",
    "loadgen.errors",
    "loadgen.scratch",
    "kv_reading",
    "kv_policies",
    "kv_tiers",
    "rag_store",
    "scheduler_plugin",
)
"""From top to bottom: a module imports from its own room and from those below it."""
PRODUCT = {layer.partition(".")[0] for layer in LAYERS}

UPWARD: set[tuple[str, str]] = {("loadgen.swarm.plugin", "dashboards")}
SPLINTERS: set[str] = {
    "loadgen.cli.run",
}
FAMILIES = (
    "kv_policies.policies.",
    "kv_tiers.codecs.",
    "kv_tiers.link.schedulers.",
    "kv_tiers.store.evictions.",
    "kv_tiers.store.placements.",
)
"""Rooms in which each of a kind has a file of its own, however short."""
SAME_NAMES: set[str] = {
    "CorpusError",
    "Document",
}
MANY_ARGUMENTS: set[str] = set()

FEWEST_LINES = 60
"""A shorter module with one importer is part of that importer."""
MOST_LINES_OF_A_FUNCTION = 60
MOST_POSITIONAL = 5
MOST_TRACKED_BYTES = 9_300_000
MOST_LINES = {"": 74_550, "rag_store.": 5_500}
"""Of all modules whose names begin so: what there is, with some room. Each step names what it can
remove before it raises them."""
MODULE_IN_TEXT = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+(?=(:\w+)?$)")


@dataclass(frozen=True)
class Module:
    """A module of the product; `imports` and `named` are other modules of it.

    `named` are those that it names in a string, to import them by it.
    """

    name: str
    path: str
    lines: int
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    imports: frozenset[str]
    named: frozenset[str]

    @property
    def below(self) -> frozenset[str]:
        """Whatever it imports, in any way."""
        return self.imports | self.named

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in self.nodes if isinstance(node, ast.ClassDef))


@cache
def tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return tuple(name for name in names if (ROOT / name).is_file())


@cache
def product() -> dict[str, Module]:
    paths = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): path
        for path in tracked()
        if path.endswith(".py") and path.partition("/")[0] in PRODUCT
    }
    modules = {}
    for name, path in paths.items():
        text = (ROOT / path).read_text()
        tree = ast.parse(text)
        nodes = tuple(ast.walk(tree))
        others = paths.keys() - {name}
        imports = frozenset(imported(nodes)) & others
        named = frozenset(named_in_texts(nodes)) & others
        modules[name] = Module(name, path, text.count("\n"), tree, nodes, imports, named)
    return modules


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What is imported at the top, late or for type checkers only."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module


def named_in_texts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Modules that texts name, but for those that are started as a process by `-m`."""
    started: set[int] = set()
    for node in nodes:  # from the outside inwards: a command comes before its words
        if isinstance(node, ast.Tuple | ast.List):
            words = [each for each in node.elts if isinstance(each, ast.Constant)]
            started |= {id(each) for each in words if "-m" in [word.value for word in words]}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = MODULE_IN_TEXT.match(node.value)
            if found and id(node) not in started:
                yield found[0]


def layer(name: str) -> int:
    """The place of a module's room, from the top."""
    for place, room in enumerate(LAYERS):
        if name == room or name.startswith(f"{room}."):
            return place
    return len(LAYERS) if name == "loadgen" else -1


def circles(graph: dict[str, frozenset[str]]) -> set[str]:
    """The modules from which imports lead back to themselves."""
    left = dict(graph)
    while ends := [name for name in left if not left.keys() & left[name]]:
        for name in ends:
            del left[name]
    return {name for name in left if name in _reached(left, name)}


def _reached(graph: dict[str, frozenset[str]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = set(graph[start])
    while ahead:
        name = ahead.pop()
        seen.add(name)
        ahead |= graph.get(name, frozenset()) - seen
    return seen


def test_a_circle_is_found() -> None:
    to = frozenset
    assert circles({"a": to("b"), "b": to("c"), "c": to("b"), "d": to()}) == {"b", "c"}


def test_imports_of_every_kind_are_seen() -> None:
    text = """
import p.one
from p import two, thing
if TYPE_CHECKING:
    from p.three import Three
def late():
    from p.four import four
    import_module("p.five")
OPEN = {"six": "p.six:open"}
COMMAND = [python, "-m", "p.seven"]
"""
    nodes = tuple(ast.walk(ast.parse(text)))
    found = {*imported(nodes), *named_in_texts(nodes)}
    assert found >= {"p.one", "p.two", "p.three", "p.four", "p.five", "p.six"}
    assert "p.seven" not in found, "a process of its own is no import"


def test_no_imports_in_a_circle() -> None:
    found = circles({name: module.below for name, module in product().items()})
    assert found == set()


def test_no_import_goes_upward() -> None:
    assert [name for name in product() if layer(name) < 0] == [], "a room that LAYERS lacks"
    upward = {
        (name, LAYERS[layer(other)])
        for name, module in product().items()
        for other in module.below
        if layer(other) < layer(name)
    }
    assert upward - UPWARD == set()


@pytest.mark.parametrize(
    ("package", "may_import"),
    [
        ("scheduler_plugin", ()),
        ("rag_store", ()),
        ("kv_reading", ("kv_tiers", "rag_store")),
        ("kv_policies", ("kv_tiers",)),
        ("kv_tiers", ()),
    ],
)
def test_what_stands_apart_imports_nothing_of_the_rest(
    package: str, may_import: tuple[str, ...]
) -> None:
    own = [module for name, module in product().items() if name.split(".")[0] == package]
    reached = {other.split(".")[0] for module in own for other in module.below}
    assert own
    assert reached <= {package, *may_import}


def test_nobody_imports_the_scheduler_plugin() -> None:
    importers = {
        name
        for name, module in product().items()
        if any(other.startswith("scheduler_plugin") for other in module.below)
    }
    assert {name for name in importers if not name.startswith("scheduler_plugin")} == set()


def test_a_short_module_with_one_importer_is_part_of_it() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for name, module in product().items():
        for other in module.imports:
            importers[other].add(name)
    splinters = {
        name
        for name, module in product().items()
        if 0 < module.lines < FEWEST_LINES
        and len(importers[name]) == 1
        and not module.path.endswith("__init__.py")
        and not name.startswith(FAMILIES)
    }
    assert splinters - SPLINTERS == set()


@pytest.mark.parametrize("room", FAMILIES)
def test_each_of_a_family_has_a_file_of_its_own(room: str) -> None:
    members = [
        name
        for name, module in product().items()
        if name.startswith(room)
        for each in module.classes
        if "name" in attributes(each)
    ]
    assert len(members) > 1
    assert {name for name, count in Counter(members).items() if count > 1} == set()


def attributes(found: ast.ClassDef) -> set[str]:
    """Those that the class itself sets."""
    targets = [to for each in found.body if isinstance(each, ast.Assign) for to in each.targets]
    return {node.id for to in targets for node in ast.walk(to) if isinstance(node, ast.Name)}


def test_class_names_are_unique() -> None:
    # Examples are read alone, and none imports another.
    names = Counter(
        each.name
        for module in product().values()
        if not module.name.startswith("locustfiles.examples")
        for each in module.classes
    )
    assert {name for name, count in names.items() if count > 1} - SAME_NAMES == set()


def test_constructors_of_many_arguments_take_keywords() -> None:
    many = {
        each.name
        for module in product().values()
        for each in module.classes
        for function in each.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        if len(function.args.posonlyargs) + len(function.args.args) - 1 > MOST_POSITIONAL
    }
    assert many - MANY_ARGUMENTS == set()


def test_no_function_is_long() -> None:
    long = [
        f"{module.path}:{function.lineno} {function.name}"
        for module in product().values()
        for function in module.nodes
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        if (function.end_lineno or 0) - function.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    silent = [m.path for m in product().values() if m.tree.body and not ast.get_docstring(m.tree)]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert [module.path for module in product().values() if Path(module.path).stem in vague] == []


@pytest.mark.parametrize(("room", "most"), MOST_LINES.items())
def test_the_product_does_not_grow_without_end(room: str, most: int) -> None:
    lines = sum(each.lines for name, each in product().items() if f"{name}.".startswith(room))
    assert lines <= most


def test_the_tree_is_small() -> None:
    assert sum((ROOT / name).stat().st_size for name in tracked()) <= MOST_TRACKED_BYTES
