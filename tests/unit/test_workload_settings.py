import math
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.locality.trace_sources import _settings as recorded_workload
from loadgen.swarm.options.swarm_options import _workload as given_workload
from loadgen.workload.settings import Span, WorkloadSettings

SPANS = st.tuples(st.integers(1, 10_000_000), st.integers(1, 10_000_000)).map(
    lambda pair: Span(min(pair), max(pair))
)


@given(SPANS)
def test_a_span_reads_back_what_it_writes(span: Span) -> None:
    assert Span.parse(str(span), "--context-tokens") == span


@given(SPANS, st.integers(0, 2**64 - 1))
def test_a_pick_is_a_member(span: Span, number: int) -> None:
    assert span.low <= span.pick(number) <= span.high


def test_both_ends_of_a_span_are_picked() -> None:
    assert {Span(3, 5).pick(number) for number in range(10)} == {3, 4, 5}


@pytest.mark.parametrize(
    "text",
    ["", "800-", "-800", "8e2", "200\u2013800", "1_000", "\u0663", "0", "800-200", "9999999999"],
)
def test_a_bad_span_names_option_and_value(text: str) -> None:
    with pytest.raises(UsageError) as error:
        Span.parse(text, "--output-tokens")
    assert "--output-tokens" in str(error.value)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("contexts", [0, -1, 10_000_001, math.nan]),
        ("zipf", [-0.1, math.nan, math.inf]),
        ("stickiness", [-0.1, 1.1, math.nan, math.inf]),
        ("repeat", [-0.1, 1.0, 2.0, math.nan, -math.inf]),
        ("context_tokens", [Span(0, 10), Span(15, 20), Span(800, 200), Span(16, 10_000_001)]),
        ("output_tokens", [Span(0, 0), Span(-1, 5), Span(5, 4)]),
        ("system_tokens", [-1, 10_000_001]),
    ],
)
def test_out_of_range_names_option_and_value(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UsageError) as error:
            WorkloadSettings(**{option: value})
        assert f"--{option.replace('_', '-')} {value} is out of range" in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"contexts": 1},
        {"contexts": 10_000_000},
        {"zipf": 40.0},
        {"stickiness": 1.0},
        {"repeat": 0.999},
        {"context_tokens": Span(16, 16)},
        {"output_tokens": Span(1, 1)},
        {"seed": -(2**70)},
    ],
)
def test_the_limits_themselves_are_allowed(settings: dict[str, Any]) -> None:
    WorkloadSettings(**settings)


@pytest.mark.parametrize("read", [given_workload, recorded_workload])
def test_each_setting_is_given_by_an_option_and_read_back_of_a_run(
    read: Callable[[Mapping[str, Any]], WorkloadSettings],
) -> None:
    numbers = {"seed": 3, "contexts": 4, "zipf": 1.5, "stickiness": 0.5, "repeat": 0.2}
    spans = {"context_tokens": "100-200", "output_tokens": "7", "system_tokens": 9}
    found, usual = astuple(read(numbers | spans)), astuple(WorkloadSettings())
    assert [one for one, other in zip(found, usual, strict=True) if one == other] == []
