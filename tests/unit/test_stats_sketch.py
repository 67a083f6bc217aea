import json
import math
import random
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.stats.sketch import Sketch

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
VALUES = st.one_of(st.just(0.0), st.floats(min_value=1e-4, max_value=1e9))


def sketch_of(values: Sequence[float]) -> Sketch:
    sketch = Sketch()
    sketch.add_many(values)
    return sketch


def exact_quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    rank = q * (len(ordered) - 1)
    lower = math.floor(rank)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (rank - lower) * (ordered[upper] - ordered[lower])


def assert_close(sketch: Sketch, values: Sequence[float]) -> None:
    for q in QUANTILES:
        assert sketch.quantile(q) == pytest.approx(exact_quantile(values, q), rel=0.005)


DRAWS: dict[str, Callable[[random.Random], float]] = {
    "uniform": lambda r: r.uniform(0, 1000),
    "log-normal": lambda r: r.lognormvariate(3, 2),
    "exponential": lambda r: r.expovariate(0.01),
    "sub-millisecond": lambda r: r.uniform(1e-4, 0.3),
    "heavy tail": lambda r: min(r.paretovariate(0.5), 1e9),
    "two modes": lambda r: r.gauss(5, 0.1) if r.random() < 0.7 else r.gauss(900, 20),
    "tokens": lambda r: r.randint(0, 4000),
    "constant": lambda r: 250.0,
}


@pytest.mark.parametrize("name", DRAWS)
def test_quantiles_of_many_shapes_match_the_sorted_values(name: str) -> None:
    source = random.Random(name)
    values = [DRAWS[name](source) for _ in range(5000)]
    sketch = sketch_of(values)
    assert_close(sketch, values)
    assert sketch.stddev == pytest.approx(statistics.pstdev(values), abs=1e-9)
    assert sketch.mean == pytest.approx(statistics.fmean(values))


@given(st.lists(VALUES, min_size=1, max_size=60))
def test_any_values_give_exact_moments_and_close_quantiles(values: list[float]) -> None:
    sketch = sketch_of(values)
    assert_close(sketch, values)
    assert sketch.count == len(values)
    assert sketch.sum == pytest.approx(math.fsum(values))
    assert (sketch.min, sketch.max) == (min(values), max(values))


@given(st.lists(VALUES, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_do_not_fall_when_q_grows(values: list[float], a: float, b: float) -> None:
    sketch = sketch_of(values)
    low, high = sketch.quantile(min(a, b)), sketch.quantile(max(a, b))
    assert low is not None
    assert high is not None
    assert low <= high * (1 + 1e-12)


@given(st.lists(st.lists(VALUES, max_size=20), min_size=3, max_size=3))
def test_merging_is_associative_and_equals_adding_all(parts: list[list[float]]) -> None:
    a, b, c = map(sketch_of, parts)
    left, right, tail = sketch_of(parts[0]), sketch_of(parts[0]), sketch_of(parts[1])
    left.merge(b)
    left.merge(c)
    tail.merge(c)
    right.merge(tail)
    whole = sketch_of([value for part in parts for value in part])
    for merged in (left, right):
        assert merged.count == whole.count
        assert [merged.quantile(q) for q in QUANTILES] == [whole.quantile(q) for q in QUANTILES]
        assert merged.sum == pytest.approx(whole.sum)
        assert (merged.stddev is None) is (whole.count == 0)
        assert (merged.stddev or 0) == pytest.approx(whole.stddev or 0, rel=1e-6, abs=1e-3)
    assert a.count == len(parts[0])


def test_merge_leaves_the_other_as_it_was() -> None:
    a, b = sketch_of([1.0, 2.0]), sketch_of([3.0])
    a.merge(b)
    a.add(4.0)
    assert (b.count, b.max) == (1, 3.0)


def test_the_deviation_of_close_values_far_from_zero_survives_merging() -> None:
    values = [1e9 + step for step in (0.0, 1.0, 2.0)] * 1000
    merged = Sketch()
    for start in range(0, len(values), 7):
        merged.merge(sketch_of(values[start : start + 7]))
    assert merged.stddev == pytest.approx(statistics.pstdev(values), rel=1e-6)


def test_adding_one_by_one_equals_adding_many() -> None:
    values = [random.Random(1).expovariate(1) for _ in range(2000)]
    single = Sketch()
    for value in values:
        single.add(value)
    assert single.count == 2000
    assert single.quantile(0.99) == sketch_of(values).quantile(0.99)
    assert single.sum == pytest.approx(math.fsum(values))


def test_a_count_stands_for_so_many_equal_values() -> None:
    counted, listed = Sketch(), sketch_of([5.0] * 7 + [0.0] * 3 + [9.0])
    counted.add(5.0, 7)
    counted.add(0.0, 3)
    counted.add(9.0)
    assert counted.count == 11
    assert counted.stddev == pytest.approx(listed.stddev)
    assert [counted.quantile(q) for q in QUANTILES] == [listed.quantile(q) for q in QUANTILES]


@pytest.mark.parametrize(
    ("q", "least"), [(0.5, 1), (0.9, 10), (0.95, 20), (0.99, 100), (0.999, 1000), (0.05, 20)]
)
def test_a_quantile_that_no_value_lies_beyond_is_not_known(q: float, least: int) -> None:
    assert sketch_of([1.0] * (least - 1)).known_quantile(q) is None
    assert sketch_of([1.0] * least).known_quantile(q) == 1.0


def test_an_empty_sketch_knows_nothing() -> None:
    sketch = Sketch()
    sketch.add_many([])
    assert (sketch.count, sketch.sum) == (0, 0.0)
    assert {sketch.mean, sketch.stddev, sketch.min, sketch.max, sketch.quantile(0.5)} == {None}


def test_one_value_is_every_quantile_exactly() -> None:
    sketch = sketch_of([123.456])
    assert {sketch.quantile(q) for q in QUANTILES} == {123.456}
    assert sketch.stddev == 0.0


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, -math.inf])
def test_what_cannot_be_held_is_refused_and_changes_nothing(bad: float) -> None:
    sketch = sketch_of([1.0])
    with pytest.raises(ValueError, match="finite values >= 0"):
        sketch.add(bad)
    with pytest.raises(ValueError, match="finite values >= 0"):
        sketch.add_many([1.0, bad, 2.0])
    assert (sketch.count, sketch.max) == (1, 1.0)


@pytest.mark.parametrize("q", [-0.1, 1.1, 99, math.nan])
def test_a_quantile_outside_0_to_1_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        sketch_of([1.0]).quantile(q)


@given(st.lists(VALUES, max_size=40))
def test_the_wire_keeps_everything(values: list[float]) -> None:
    sketch = sketch_of(values)
    copy = Sketch.from_wire(json.loads(json.dumps(sketch.to_wire(), allow_nan=False)))
    assert copy.to_wire() == sketch.to_wire()
    assert [copy.quantile(q) for q in QUANTILES] == [sketch.quantile(q) for q in QUANTILES]
    copy.add(7.0)
    assert copy.count == len(values) + 1


def test_a_million_spread_values_stay_small_on_the_wire() -> None:
    sketch = Sketch()
    for exponent in range(-400, 900):
        sketch.add(10 ** (exponent / 100), 1000)
    assert sketch.count == 1_300_000
    assert len(json.dumps(sketch.to_wire())) < 20_000
