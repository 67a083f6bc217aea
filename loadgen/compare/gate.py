"""Limits on what a new run may be: `ttft_ms.p95<=+10%, errors<=0.1%`, or the same as TOML."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from loadgen.compare.metrics import Statistic, parse_statistic
from loadgen.errors import UsageError
from loadgen.scratch import without_device

PASSED = 0
"""No limit is broken, or there is no gate."""
BROKEN = 1
"""A limit is broken: the whole interval lies beyond it."""
UNDECIDED = 4
"""Cannot decide: too few samples, no interval, one that is too wide to tell, or a run that is not
sound."""
"""Exit codes of a gate; wrong use is 2."""
CONFIDENCE = 0.99
"""Of the intervals of all limits of a gate together."""
Kind = Literal["relative", "difference", "value"]
Outcome = Literal["passed", "broken", "undecided"]
_LIMIT = re.compile(r"\s*([\w.]+)\s*(<=|>=)\s*([+-]?)(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """`at_most` or at least `bound`. A relative one is of the change (0.1 is 10 % more), a
    difference and a value are in the metric's unit; a share's are shares, 0 to 1."""

    statistic: Statistic
    at_most: bool
    bound: float
    kind: Kind
    text: str

    @property
    def needs(self) -> Kind:
        """What it needs an interval of. A difference of shares is their change, as rows show it."""
        is_change = self.kind == "difference" and self.statistic.metric.form == "share"
        return "relative" if is_change else self.kind


def parse_gate(text: str) -> tuple[Limit, ...]:
    """Limits out of a list with commas, or of the TOML file named. Raises UsageError."""
    limits = _read_toml(Path(text)) if text.endswith(".toml") else text.split(",")
    return tuple(parse_limit(limit) for limit in limits)


def parse_limit(text: str) -> Limit:
    """One limit.

    With a sign it limits the change: `+10%` relative to the base, of a share in points, and `+20`
    in the metric's unit. Without one it limits the new run alone: `200` in the metric's unit, of a
    share `0.1%`. Raises UsageError.
    """
    found = _LIMIT.fullmatch(text)
    if not found:
        raise UsageError(
            f"--gate: {text.strip()[:60]!r} is no limit, write METRIC<=LIMIT or METRIC>=LIMIT such"
            " as ttft_ms.p95<=+10%"
        )
    name, operator, sign, number, percent = found.groups()
    statistic = parse_statistic(name)
    bound = float(sign + number)
    if not math.isfinite(bound):
        raise UsageError(f"--gate: {name}: a limit of {len(number)} digits is no limit")
    kind = _kind(statistic, sign, percent, text)
    if percent:
        bound = float(Fraction(sign + number) / 100)  # 0.7 / 100 is not what 7 of 1,000 are
    if statistic.metric.form == "share" and abs(bound) > 1:
        raise UsageError(f"--gate: {text.strip()} is more than the whole: give at most 100%")
    if kind == "relative" and bound <= -1:
        raise UsageError(f"--gate: {text.strip()} says nothing: no figure falls by more than 100%")
    return Limit(statistic, operator == "<=", bound, kind, "".join(text.split()))


def _kind(statistic: Statistic, sign: str, percent: str, text: str) -> Kind:
    if statistic.metric.form == "share":
        if not percent:
            raise UsageError(f"--gate: {text.strip()!r}: {statistic.name} is a share, add a %")
        return "difference" if sign else "value"
    if percent and not sign:
        raise UsageError(
            f"--gate: {text.strip()!r}: give it in"
            f" {statistic.metric.unit}, or say +N% or -N%, a change against the base"
        )
    if percent:
        return "relative"
    return "difference" if sign else "value"


def _read_toml(path: Path) -> list[str]:
    """A table `[gate]` of metric to limit, such as `"ttft_ms.p95" = "<=+10%"`."""
    try:
        content = tomllib.loads(without_device(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--gate {path} cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"--gate {path} is no TOML ({error})") from None
    table = content.get("gate")
    if not isinstance(table, dict) or not table:
        raise UsageError(f'--gate {path} needs a table [gate] with lines like errors = "<=0.1%"')
    if beside := sorted(content.keys() - {"gate"}):
        raise UsageError(f"--gate {path}: {beside[0]} is not in [gate], so no limit: move it there")
    return [name + limit for name, limit in _flat(table, path)]


def _flat(table: Mapping[str, Any], path: Path, prefix: str = "") -> Iterator[tuple[str, str]]:
    """TOML reads an unquoted `ttft_ms.p95` as a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, path, f"{prefix}{name}.")
        elif isinstance(value, str):
            yield prefix + name, value
        else:
            raise UsageError(f'--gate {path}: {prefix}{name} must be text such as "<=+10%"')


def junit(suite_name: str, cases: Sequence[tuple[str, Outcome, str]], said: str = "") -> str:
    """JUnit XML of cases, each with its name, what became of it and a text about it: a broken limit
    is a failure, an undecided one an error. `said` is of the whole suite."""
    outcomes = [outcome for _, outcome, _ in cases]
    suite = ElementTree.Element(
        "testsuite",
        name=suite_name,
        tests=str(len(cases)),
        failures=str(outcomes.count("broken")),
        errors=str(outcomes.count("undecided")),
    )
    for name, outcome, text in cases:
        case = ElementTree.SubElement(suite, "testcase", classname=suite_name, name=name)
        if outcome == "passed":
            ElementTree.SubElement(case, "system-out").text = text
        else:
            tag = "failure" if outcome == "broken" else "error"
            ElementTree.SubElement(case, tag, type=outcome, message=text)
    if said:
        ElementTree.SubElement(suite, "system-out").text = said
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
