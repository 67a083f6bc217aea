"""What is read from pages of metrics that several engines or models share."""

import math

import pytest
from replay_host import ReplayHost, reply

from loadgen.stats.counter_series import CounterTotals
from loadgen.stats.prometheus import Sample
from loadgen.stats.server_counters import Figures, ServerAccumulator
from loadgen.stats.server_metrics import MetricsScraper, MetricsSource, MetricsSources
from loadgen.targets.catalog import usual_series

KEY = {"Authorization": "Bearer sk-secret-123456"}


async def figures_of(
    replays: ReplayHost, pages: list[str], samples: int = 0, **source: object
) -> tuple[Figures, frozenset[str]]:
    """Of a run that saw those pages, and the models that they were of."""
    url = replays.add("metrics", {"key": KEY["Authorization"], "metrics": pages})
    replays.asked.clear()
    counters, series = usual_series("engine")
    asked = MetricsSource(f"{url}/metrics", series, counters, **{"headers": KEY, **source})  # type: ignore[arg-type]
    totals = ServerAccumulator()
    async with MetricsScraper(MetricsSources(asked)) as scraper:
        for second in range(samples or len(pages)):
            totals.add(await scraper.scrape(float(second)))
        return totals.figures(), scraper.models


async def test_a_page_behind_a_key_is_asked_with_it(replays: ReplayHost) -> None:
    pages = reply("metrics-behind-the-key")["metrics"]
    figures, _ = await figures_of(replays, pages)
    assert figures["hit_rate"] == 0.6
    without, _ = await figures_of(replays, pages, headers={})
    assert without["hit_rate"] is None


async def test_a_restart_of_one_replica_is_seen_beside_another(replays: ReplayHost) -> None:
    figures, _ = await figures_of(replays, reply("one-replica-restarts")["metrics"])
    assert (figures["counter_reset"], figures["computed_prompt_tokens"]) == (True, None)


@pytest.mark.parametrize(("model", "rate"), [("m", 0.6), (None, 0.006), ("base", 0.006)])
async def test_the_model_that_was_named_is_told_from_others(
    replays: ReplayHost, model: str | None, rate: float
) -> None:
    pages = reply("two-models-on-one-page")["metrics"]
    figures, models = await figures_of(replays, pages, model=model)
    assert figures["hit_rate"] == pytest.approx(rate, rel=0.02)
    assert models == ({"m"} if model == "m" else {"m", "other"})


def page(*engines: tuple[str, int], created: dict[str, float] | None = None) -> str:
    """Half of each engine's prompt tokens are hits."""
    lines = []
    for engine, tokens in engines:
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f"vllm:prompt_tokens_total{{{labels}}} {tokens}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {tokens // 2}",
            f'vllm:request_success_total{{{labels},finished_reason="stop"}} {tokens // 10}',
        ]
        if created and engine in created:
            lines.append(f"vllm:prompt_tokens_created{{{labels}}} {created[engine]}")
            lines.append(f"vllm:prefix_cache_hits_created{{{labels}}} {created[engine]}")
    return "\n".join(lines) + "\n"


def unlabelled(text: str) -> str:
    """One of the counters adds up over the engines."""
    return text + 'vllm:generation_tokens_total{model_name="m"} 7\n'


OLD_S, LATER_S = 1e9, 9e9


@pytest.mark.parametrize(
    ("pages", "prompt_tokens"),
    [
        pytest.param(
            [page(("0", 100)), page(("0", 200), ("1", 500_000)), page(("0", 300), ("1", 500_150))],
            350,
            id="appears with a history",
        ),
        pytest.param(
            [
                page(("0", 100), created={"0": OLD_S}),
                page(("0", 200), ("1", 40), created={"0": OLD_S, "1": LATER_S}),
                page(("0", 300), ("1", 50), created={"0": OLD_S, "1": LATER_S}),
            ],
            250,
            id="begins in the run",
        ),
        pytest.param(
            [page(("0", 100), ("1", 9000)), page(("0", 200), ("1", 9100)), page(("0", 300))],
            300,
            id="vanishes",
        ),
        pytest.param(
            [page(("0", 100), ("1", 9000)), page(("0", 200)), page(("0", 300), ("1", 9050))],
            250,
            id="is away for a while",
        ),
        pytest.param(
            [
                unlabelled(page(("0", 100))),
                unlabelled(page(("0", 200), ("1", 500_000))),
                unlabelled(page(("0", 300), ("1", 500_150))),
            ],
            350,
            id="appears with a history, and a counter does not name the engine",
        ),
        pytest.param(
            [page(("0", 1000), ("0", 10)), page(("0", 1010), ("0", 20))],
            20,
            id="is there twice",
        ),
        pytest.param(
            [page(("0", 1000), ("0", 500)), page(("0", 900)), page(("0", 950))],
            50,
            id="is there twice, then once",
        ),
    ],
)
async def test_each_series_counts_by_itself(
    replays: ReplayHost, pages: list[str], prompt_tokens: int
) -> None:
    figures, _ = await figures_of(replays, pages)
    assert figures["counter_reset"] is False
    assert figures["computed_prompt_tokens"] == prompt_tokens // 2
    assert figures["cached_prompt_tokens"] == prompt_tokens // 2


async def test_an_engine_that_started_again_and_overtook_itself_is_told_by_its_age(
    replays: ReplayHost,
) -> None:
    pages = [page(("0", 100), created={"0": OLD_S}), page(("0", 700), created={"0": OLD_S + 60})]
    figures, _ = await figures_of(replays, pages)
    assert figures["counter_reset"] is True


async def test_an_age_that_is_told_a_little_otherwise_is_no_restart(replays: ReplayHost) -> None:
    pages = [page(("0", 100), created={"0": OLD_S}), page(("0", 300), created={"0": OLD_S + 0.01})]
    figures, _ = await figures_of(replays, pages)
    assert (figures["counter_reset"], figures["computed_prompt_tokens"]) == (False, 100)


def other_order(text: str) -> str:
    return text.replace('engine="0",model_name="m"', 'model_name="m", engine="0",')


def nothing_known(text: str) -> str:
    return "".join(f"{line.rpartition(' ')[0]} NaN\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "between",
    [
        pytest.param([], id="none"),
        pytest.param([other_order(page(("0", 200)))], id="labels in another order"),
        pytest.param([nothing_known(page(("0", 200)))], id="NaN"),
        pytest.param([page(("0", 200)).replace("\n", " 1700000000000\n")], id="timestamps"),
        pytest.param([page(("0", 200)).replace("_total", "")], id="no _total"),
        pytest.param([page(("0", 200)) + page(("0", 200)).replace("_total", "")], id="both names"),
    ],
)
async def test_a_page_may_be_written_otherwise(replays: ReplayHost, between: list[str]) -> None:
    pages = [page(("0", 100)), *between, page(("0", 300))]
    figures, _ = await figures_of(replays, pages)
    assert (figures["counter_reset"], figures["computed_prompt_tokens"]) == (False, 100)


async def test_counters_may_lack_the_ending_of_their_names(replays: ReplayHost) -> None:
    pages = [page(("0", tokens)).replace("_total", "") for tokens in (100, 300)]
    figures, _ = await figures_of(replays, pages)
    assert figures["computed_prompt_tokens"] == 100


async def test_a_reason_that_an_engine_counts_for_the_first_time_counts_from_zero(
    replays: ReplayHost,
) -> None:
    first = page(("0", 100))
    later = first.replace('"stop"} 10', '"length"} 7')
    counters, series = usual_series("engine")
    url = replays.add("metrics", {"metrics": [first, first + later]})
    replays.asked.clear()
    asked = MetricsSource(f"{url}/metrics", series, counters)
    async with MetricsScraper(MetricsSources(asked)) as scraper:
        told = [(await scraper.scrape(float(n))).request_success for n in range(2)]
    assert told == [10, 17]


@pytest.mark.parametrize("label", ["model", "model_id"])
async def test_a_model_may_be_told_by_another_label(replays: ReplayHost, label: str) -> None:
    pages = [
        each.replace("model_name=", f"{label}=")
        for each in reply("two-models-on-one-page")["metrics"]
    ]
    figures, models = await figures_of(replays, pages, model="m")
    assert figures["hit_rate"] == pytest.approx(0.6, rel=0.02)
    assert models == {"m"}


def sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(name, labels, value)


def test_what_a_known_engine_counts_anew_is_young_whatever_its_clock_says() -> None:
    totals = CounterTotals()
    first = {"a": [sample("a_total", 100, e="0")], "b": [sample("b_total", 5, e="0", reason="x")]}
    totals.take(first, [])
    more = first | {"b": [*first["b"], sample("b_total", 7, e="0", reason="y")]}
    told = totals.take(more, [sample("b_created", 1.0, e="0", reason="y")])
    assert told == {"a": 100, "b": 12}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e20])
def test_the_first_number_of_a_series_that_had_none_is_history(value: float) -> None:
    totals, known = CounterTotals(), {"b": [sample("b_total", 7, e="1")]}
    told = [
        totals.take(
            known | {"a": [sample("a_total", 100, e="0"), sample("a_total", other, e="1")]}, []
        )
        for other in (value, 5_000, 5_001, value, 5_003)
    ]
    assert [each["a"] for each in told] == [100, 100, 101, 101, 103]
