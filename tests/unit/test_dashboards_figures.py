"""Pictures: what is computed for them, and what ends up in the SVG."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dashboards.figures import line_fit, marks
from dashboards.figures.latency import latency_by_number, latency_over_time
from dashboards.figures.line_fit import fit_line
from dashboards.figures.prompt_length import clouds, prompt_length
from dashboards.figures.rates import throughput
from dashboards.figures.requests import (
    DrawnRequests,
    changes_by_chance,
    context_changes,
    renumbered,
)
from dashboards.figures.server import ServerSeries, hit_rates
from dashboards.figures.style import (
    colour_of,
    finish,
    new_axes,
    new_figure,
    save_svg,
    svg_text,
)
from dashboards.figures.timeline import MOST_ROWS, ROW_CELLS, described, most_rows, timeline

RNG = np.random.default_rng(0)


def requests(count: int, different: int = 4, **fields: Any) -> DrawnRequests:
    """Sent ten a second; served in that order; context by context, ten at a time."""
    at_s = np.arange(count) / 10.0
    ttft_ms = 50 + RNG.exponential(10, count)
    known: dict[str, Any] = {
        "at_s": at_s,
        "first_token_s": at_s + 0.01,
        "end_s": at_s + 0.5,
        "ttft_ms": ttft_ms,
        "e2e_ms": ttft_ms + 400,
        "prompt_tokens": 500 + RNG.integers(0, 1000, count).astype(float),
        "cached_tokens": np.full(count, np.nan),
        "output_tokens": np.full(count, 16.0),
        "context": np.arange(count) // 10 % different,
        "contexts": tuple(f"context-{each}" for each in range(different)),
        "outcome": np.zeros(count, dtype=np.intp),
        "outcomes": ("ok",),
    }
    return DrawnRequests(**known | fields)


def test_line_does_not_follow_outliers_and_its_interval_holds_the_truth() -> None:
    x = RNG.uniform(100, 4000, 300)
    y = 20 + 0.15 * x + RNG.normal(0, 5, 300)
    y[:60] += 5000
    fit = fit_line(np.append(x, np.nan), np.append(y, 1.0))
    assert fit is not None
    assert fit.slope == pytest.approx(0.15, rel=0.15)
    assert fit.low <= 0.15 <= fit.high
    assert fit.is_certain
    least_squares = np.polyfit(x, y, 1)
    assert abs(fit.intercept - 20) < abs(least_squares[1] - 20) / 5


def test_interval_of_a_slope_covers_it_as_often_as_it_says() -> None:
    hits = 0
    for _ in range(200):
        x = RNG.uniform(1, 100, 30)
        fit = fit_line(x, 3 * x + RNG.standard_t(3, 30) * 20)
        assert fit is not None
        hits += fit.low <= 3 <= fit.high
    assert 180 <= hits <= 199


def test_interval_of_a_slope_turns_with_the_data_and_knows_equal_lengths() -> None:
    x = np.repeat([1000.0, 2000.0], 20)
    y = x / 10 + RNG.normal(0, 5, 40)
    up, down = fit_line(x, y), fit_line(x, -y)
    assert up is not None
    assert down is not None
    assert (up.low, up.high) == (-down.high, -down.low)
    of_two_means = 2 * 5 * np.sqrt(2 / 20) / 1000
    assert (up.high - up.low) / 2 < 2 * of_two_means
    one_longer = np.append(np.full(9, 100.0), 9000.0)
    assert fit_line(one_longer, one_longer) is None  # its interval is open


def test_no_line_through_few_points_or_lengths_that_are_alike() -> None:
    x = RNG.uniform(1000, 1100, 100)
    assert fit_line(x, x) is None
    few = np.arange(line_fit.LEAST_POINTS - 1) * 100.0
    assert fit_line(few, few) is None


@pytest.mark.parametrize("span_s", [0.01, 59.5, 121, 3600, 86_400 * 300])
def test_bins_cover_the_span_and_are_few(span_s: float) -> None:
    edges = marks.time_edges(-0.5, span_s - 0.5)
    assert edges[0] <= -0.5
    assert edges[-1] >= span_s - 0.5
    assert len(edges) - 1 <= marks.MOST_BINS + 1
    covered = marks.covered_s(edges, -0.5, span_s - 0.5)
    assert covered.sum() == pytest.approx(span_s)


def test_a_run_of_one_moment_has_one_bin_and_no_rate() -> None:
    assert len(marks.time_edges(3.0, 3.0)) == 2
    moment = np.asarray([3.0])
    run = requests(1, at_s=moment, first_token_s=moment, end_s=moment)
    assert latency_over_time({"a": run}).axes[0].has_data()
    assert throughput({"a": run}).axes[0].texts[0].get_text() == "no data"


def test_quantiles_of_bins_are_those_of_their_values() -> None:
    at_s, values = np.asarray([0.1, 0.2, 0.9, 2.5, np.nan]), np.asarray([1.0, 2, 9, 4, 5])
    found = marks.binned_quantiles(at_s, values, np.arange(4.0), np.asarray([0.5, 0.7]))
    np.testing.assert_allclose(found, [[2, np.nan, 4], [np.nan, np.nan, np.nan]])
    more = marks.binned_quantiles(np.zeros(4), np.arange(4.0), np.arange(2.0), np.asarray([0.7]))
    np.testing.assert_allclose(more, [[2.1]])


@pytest.mark.parametrize(("count", "has_p95"), [(19, False), (20, True)])
def test_a_p95_is_drawn_of_spans_with_20_requests(count: int, has_p95: bool) -> None:
    moments = np.zeros(count)
    run = requests(count, at_s=moments, first_token_s=moments, end_s=moments)
    labels = [line.get_label() for line in latency_over_time({"a": run}).axes[0].lines]
    assert "TTFT p50" in labels
    assert ("TTFT p95" in labels) == has_p95


def test_order_of_service_is_that_of_first_tokens() -> None:
    run = requests(4, first_token_s=np.asarray([3.0, np.nan, 1.0, 2.0]))
    assert run.service_order.tolist() == [2, 3, 0]


def test_one_context_has_one_colour_in_all_runs() -> None:
    first = requests(2, context=np.asarray([0, 1]), contexts=("a", "b"))
    second = requests(3, context=np.asarray([0, 1, 2]), contexts=("c", "b", "a"))
    one, two = renumbered([first, second])
    assert one.contexts == two.contexts == ("a", "b", "c")
    assert two.context.tolist() == [2, 1, 0]


def test_timeline_is_confetti_or_a_flag_as_the_order_was() -> None:
    flag = np.repeat(np.arange(3), 8)
    confetti = np.tile(np.arange(3), 8)
    assert (context_changes(flag), context_changes(confetti)) == (2, 23)
    assert described("x", flag).endswith("the context changes 2 times")
    for order in (flag, confetti):
        svg = svg_text(timeline({"": order}, ("a", "b", "c")))
        cells = [
            (float(left), colour)
            for left, colour in re.findall(
                r'<path d="M ([\d.]+) [^"]*" clip-path[^>]*(#\w{6})', svg
            )
        ]
        drawn = [colour for _, colour in sorted(cells)]
        assert drawn == [colour_of(int(each)) for each in order]


def test_long_timelines_show_stretches_and_say_so() -> None:
    order = np.zeros(100_000, dtype=np.intp)
    assert f"({MOST_ROWS} stretches of {ROW_CELLS} shown)" in described("", order)
    svg = svg_text(timeline({"a": order, "b": order}, ("x",)))
    assert svg.count("<image") == 2 * most_rows(2) == MOST_ROWS
    assert f"({most_rows(2)} stretches of {ROW_CELLS} shown)" in svg
    assert len(svg) < 60_000


def test_pictures_of_very_many_requests_stay_small() -> None:
    run = requests(120_000, 300)
    for figure in (
        latency_by_number({"a": run}),
        latency_over_time({"a": run}),
        prompt_length({"a": run}),
    ):
        svg = svg_text(figure)
        assert svg.count("<use") < 300
        assert 5_000 < len(svg) < 1_000_000


def test_prompts_are_told_apart_by_what_was_cached_where_it_is_known() -> None:
    unknown = requests(100)
    assert [each.kind for each in clouds(unknown)] == ["all"]
    cached = np.where(np.arange(100) < 30, 0.9, 0.1) * unknown.prompt_tokens
    known = {each.kind: len(each.x) for each in clouds(replace(unknown, cached_tokens=cached))}
    assert known == {"computed": 70, "cached": 30}


def test_hit_rate_of_a_span_is_of_what_counters_rose_by() -> None:
    at_s = np.arange(5.0)
    columns = {
        "cached_prompt_tokens": np.asarray([1000.0, 1300, 1300, 1400, 0]),
        "computed_prompt_tokens": np.asarray([500.0, 600, 600, 700, 100]),
        "external_prompt_tokens": np.asarray([0.0, 0, 0, 200, 200]),
    }
    _, rates = hit_rates(ServerSeries(at_s, columns))
    np.testing.assert_allclose(rates["prefix cache"], [0.75, np.nan, 0.25, np.nan])
    np.testing.assert_allclose(rates["external"], [0, np.nan, 0.5, np.nan])


def _named_figure(name: str) -> Any:
    figure = new_figure()
    axes = new_axes(figure, name, "time (s)", "ms")
    axes.plot([1, 2], [3, 4], label=name)
    axes.legend()
    return figure


def test_svg_is_text_for_a_page_and_the_same_each_time(tmp_path: Any) -> None:
    evil = '<b>$x_{1}$ & "q"'
    svg = svg_text(_named_figure(evil), f"about {evil}", "one")
    assert svg == svg_text(_named_figure(evil), f"about {evil}", "one")
    assert svg.count("&lt;b&gt;$x_{1}$ &amp; ") == 3
    assert "<b>" not in svg
    assert "currentColor" in svg
    assert "<style" not in svg
    ids = set(re.findall(r' id="([^"]+)"', svg))
    assert ids
    assert not ids & set(re.findall(r' id="([^"]+)"', svg_text(_named_figure("x"), "", "two")))
    save_svg(_named_figure("x"), tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert text.startswith("<?xml")
    assert "currentColor" not in text


def test_changes_by_chance_are_the_mean_over_random_orders() -> None:
    order = np.repeat(np.arange(4), (3, 5, 8, 14))
    shuffled = [context_changes(RNG.permutation(order)) for _ in range(4000)]
    assert changes_by_chance(order) == pytest.approx(np.mean(shuffled), abs=0.15)


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [((3, 70), ["5", "10", "20", "50"]), ((16, 23), ["16", "18", "20", "22"]), ((1, 9000), ["10"])],
)
def test_numbers_of_a_logarithmic_axis_are_written_out(
    ends: tuple[float, float], wanted: list[str]
) -> None:
    axes = new_axes(figure := new_figure())
    axes.plot(ends, ends)
    axes.set_yscale("log")
    finish(axes)
    text = svg_text(figure)
    assert "mathdefault" not in text
    assert "times" not in text
    labels = {label.get_text() for label in axes.yaxis.get_majorticklabels()}
    assert labels > set(wanted)
    assert {label.get_text() for label in axes.yaxis.get_minorticklabels()} <= {""}
