"""The rules by which studies answer: what they say follows the figures, also where those turn."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from study_cells import Made, cell, noisy

from dashboards.studies.answer import MarkdownTable, StudyAnswer
from dashboards.studies.cell import Cells, StudyCell
from dashboards.studies.contrast import contrast
from dashboards.studies.task1.caches import error, knee
from dashboards.studies.task1.diversity import diversity, old_requests
from dashboards.studies.task1.length import by_length, with_and_without
from dashboards.studies.task2 import Gain, why
from dashboards.studies.task3 import documents, gain_lost, order_by_label, relevance, retrieval
from dashboards.studies.wording import percent, times
from loadgen.locality.curve import CacheCurve, predict
from loadgen.locality.measured import MeasuredRun
from loadgen.locality.trace import Chain, Trace

PLAIN, NO_REUSE, ORDERED = "vllm", "vllm-no-prefix-cache", "vllm-context"
BATCH = Gain("size", "?", "kv_tokens", "tokens of cache", "tokens")


def said(answer: StudyAnswer) -> str:
    return " ".join(answer.sentences)


def gain_at(folder: Path, plain_ms: float, ordered_ms: float, spread: float = 0.1) -> StudyAnswer:
    sides = ((PLAIN, plain_ms), (ORDERED, ordered_ms))
    return BATCH.answer(
        Cells(
            tuple(
                cell(folder, "size", Made(noisy(ms, spread, seed)), target=target, kv_tokens=5120)
                for seed, (target, ms) in enumerate(sides)
            )
        )
    )


def test_gain_turns_with_the_data(tmp_path: Path) -> None:
    assert "2.0 times as fast with 5,120 tokens" in gain_at(tmp_path, 400, 200).short
    assert "2.0 times as long with 5,120 tokens" in gain_at(tmp_path, 200, 400).short


def test_a_small_difference_is_not_one_of_1_0_times(tmp_path: Path) -> None:
    assert "1.04 times as fast" in gain_at(tmp_path, 208, 200, spread=0.01).short
    assert times(1.04) == "1.04 times"


def test_more_tokens_by_context_are_not_about_the_same(tmp_path: Path) -> None:
    cells = Cells(
        tuple(
            cell(
                tmp_path,
                "size",
                Made([100.0] * 40),
                figures={"computed_tokens_a_request": tokens},
                target=target,
                kv_tokens=5120,
            )
            for target, tokens in ((PLAIN, 300.0), (ORDERED, 900.0))
        )
    )
    text = said(BATCH.answer(cells))
    assert "by context computes more" in text
    assert "about the same" not in text


def computed(folder: Path, plain: tuple[float, ...], ordered: tuple[float, ...]) -> str:
    """What is said of runs that compute so many tokens for a request."""
    cells = (
        cell(
            folder,
            "size",
            Made([100.0] * 40),
            at,
            figures={"computed_tokens_a_request": each},
            target=target,
            kv_tokens=5120,
        )
        for target, of_runs in ((PLAIN, plain), (ORDERED, ordered))
        for at, each in enumerate(of_runs, 1)
    )
    return said(BATCH.answer(Cells(tuple(cells))))


def test_tokens_of_runs_that_do_not_agree_are_no_gain(tmp_path: Path) -> None:
    """The median of three runs is lower, but not that of every run."""
    text = computed(tmp_path, (900.0, 910.0, 300.0), (300.0, 310.0, 900.0))
    assert "Runs do not agree on which order computes more" in text


@pytest.mark.parametrize("is_plain_more", [True, False])
def test_runs_that_differ_in_one_direction_do_agree(tmp_path: Path, is_plain_more: bool) -> None:
    """Two of three compute over 5 % more, the third about the same."""
    sides = (400.0, 330.0, 299.0), (300.0, 300.0, 300.0)
    text = computed(tmp_path, *(sides if is_plain_more else sides[::-1]))
    assert "do not agree" not in text
    more = "first come, first served" if is_plain_more else "serving by context"
    assert f"never the other way round, {more} computes over 5 % more prompt tokens" in text
    told = "330 against 300" if is_plain_more else "300 against 330"
    assert f"for each request, {told} (2 of 3 runs) with 5,120 tokens of cache." in text


@pytest.mark.parametrize(
    ("plain", "ordered_ms", "is_yet"),
    [(320.0, 200, True), (340.0, 200, False), (320.0, 400, False)],
)
def test_a_gain_in_time_alone_is_said_to_be_one(
    tmp_path: Path, plain: float, ordered_ms: float, is_yet: bool
) -> None:
    short = BATCH.answer(both_orders(tmp_path, plain, ordered_ms)).short
    yet = "Yet with 5,120 tokens of cache both orders compute about the same prompt tokens"
    assert (yet in short) == is_yet


def test_a_cache_that_holds_all_contexts_is_said_to(tmp_path: Path) -> None:
    def short(tokens: int) -> str:
        sizes = {"contexts": 6, "context_tokens": tokens}
        return BATCH.answer(both_orders(tmp_path, 300.0, 400, **sizes)).short

    assert short(800).endswith("A cache of 5,120 tokens holds all 6 contexts of 800 tokens.")
    assert "holds all" not in short(1500)


def both_orders(folder: Path, plain: float, ordered_ms: float, **more: int) -> Cells:
    """First come takes 400 ms and computes `plain` tokens a request, by context it is 300."""
    sides = ((PLAIN, 400.0, plain), (ORDERED, ordered_ms, 300.0))
    return Cells(
        tuple(
            cell(
                *(folder, "size", Made(noisy(ms, 0.1, seed))),
                figures={"computed_tokens_a_request": tokens},
                target=target,
                kv_tokens=5120,
                **more,
            )
            for seed, (target, ms, tokens) in enumerate(sides)
        )
    )


def test_noise_is_no_evidence(tmp_path: Path) -> None:
    short = gain_at(tmp_path, 210, 200, spread=1.0).short
    assert re.search(r"with 5,120 tokens.* \(.+ %.* 95 % interval .+\) there is no evidence", short)
    assert "times as" not in short


def test_a_table_keeps_its_columns_whatever_stands_in_it() -> None:
    lines = MarkdownTable(("a", "b"), (("x | y\nz", "<b>"),)).markdown.split("\n")
    assert lines[2] == r"| x \| y z | &lt;b> |"


def test_few_requests_are_too_little_data(tmp_path: Path) -> None:
    cells = Cells(
        tuple(
            cell(tmp_path, "size", Made([ms] * 5), target=target, kv_tokens=5120)
            for target, ms in ((PLAIN, 900.0), (ORDERED, 100.0))
        )
    )
    assert "too little data with 5,120 tokens" in BATCH.answer(cells).short


def test_a_run_with_a_fault_decides_nothing(tmp_path: Path) -> None:
    fast = cell(
        tmp_path,
        "size",
        Made(noisy(100, 0.1, 1)),
        fault="saturated",
        target=ORDERED,
        kv_tokens=5120,
    )
    slow = cell(tmp_path, "size", Made(noisy(400, 0.1, 2)), target=PLAIN, kv_tokens=5120)
    assert (
        "Served by context: no usable run with 5,120 tokens"
        in BATCH.answer(Cells((fast, slow))).short
    )


def test_of_a_late_client_only_counts_are_used(tmp_path: Path) -> None:
    cells = Cells(
        tuple(
            cell(
                tmp_path,
                "size",
                Made(noisy(ms, 0.1, 1)),
                fault="late",
                late=True,
                figures={"computed_tokens_a_request": tokens},
                target=target,
                kv_tokens=5120,
            )
            for target, ms, tokens in ((PLAIN, 400, 900.0), (ORDERED, 100, 300.0))
        )
    )
    text = said(BATCH.answer(cells))
    assert "no usable run with 5,120 tokens" in text
    assert "900 against 300 with 5,120" in text


def test_repeats_speak_for_themselves(tmp_path: Path) -> None:
    """Runs that differ more from each other than the two sides do are no evidence, however
    steady each of them is."""

    def side(target: str, runs_ms: tuple[float, ...]) -> list:
        return [
            cell(tmp_path, "size", Made(noisy(ms, 0.01, at)), at, target=target, kv_tokens=5120)
            for at, ms in enumerate(runs_ms, 1)
        ]

    steady = Cells((*side(PLAIN, (400, 404, 396)), *side(ORDERED, (200, 201, 199))))
    assert "2.0 times as fast" in BATCH.answer(steady).short
    unsteady = Cells((*side(PLAIN, (400, 150, 300)), *side(ORDERED, (200, 310, 180))))
    assert "no evidence" in BATCH.answer(unsteady).short


def sizes(
    folder: Path, runs: dict[str, dict[int, float]], faulty: tuple[int, ...] = ()
) -> StudyAnswer:
    """A gain from runs by target and repeat; `faulty` are repeats of the plain target."""
    return BATCH.answer(
        Cells(
            tuple(
                cell(
                    folder,
                    "size",
                    Made(noisy(ms, 0.01, repeat)),
                    repeat,
                    fault="late" if target == PLAIN and repeat in faulty else "",
                    late=True,
                    target=target,
                    kv_tokens=5120,
                )
                for target, by_repeat in runs.items()
                for repeat, ms in by_repeat.items()
            )
        )
    )


def test_figures_after_a_faulty_repeat_are_those_of_the_pairs(tmp_path: Path) -> None:
    """The third repeat is ten times as long as the others, whatever the order."""
    runs = {PLAIN: {1: 400, 2: 404, 3: 4000}, ORDERED: {1: 200, 2: 202, 3: 2000}}
    row = sizes(tmp_path, runs, faulty=(3,)).tables[0].rows[0]
    assert (row[1], row[2], row[3]) == ("402 ms", "201 ms", "-50 %")


def test_what_is_cached_counts_also_where_the_client_was_late(tmp_path: Path) -> None:
    sides = [
        Cells((cell(tmp_path, "size", Made([100.0] * 40), fault="late", late=late),))
        for late in (True, False)
    ]
    told = [contrast(*sides[:1] * 2, ("a", "b"), name).row for name in ("cached_share", "errors")]
    assert (told[0] is not None, told[1] is None) == (True, True)
    assert contrast(*sides[1:] * 2, ("a", "b"), "cached_share").row is None


def test_two_pairs_are_taken_for_four_runs(tmp_path: Path) -> None:
    """One degree of freedom would want a change of a hundred standard errors."""
    runs = {PLAIN: {1: 400, 2: 300}, ORDERED: {1: 101, 2: 99}}
    row = sizes(tmp_path, runs).tables[0].rows[0]
    assert (row[3], row[5]) == ("-71 %", "better")
    alike = {PLAIN: {1: 400, 2: 200}, ORDERED: {1: 190, 2: 210}}
    assert "no evidence" in sizes(tmp_path, alike).short


def test_one_pair_left_of_several_decides_nothing(tmp_path: Path) -> None:
    runs = {PLAIN: {1: 400, 2: 404}, ORDERED: {1: 200, 2: 202}}
    assert "too little data" in sizes(tmp_path, runs, faulty=(2,)).short


def test_many_runs_of_few_requests_decide_by_how_they_differ(tmp_path: Path) -> None:
    def short(*ordered_ms: float) -> str:
        sides = ((PLAIN, (400, 410, 390)), (ORDERED, ordered_ms))
        cells = (
            cell(tmp_path, "size", Made([ms] * 6), at, target=target, kv_tokens=5120)
            for target, times_ms in sides
            for at, ms in enumerate(times_ms, 1)
        )
        return BATCH.answer(Cells(tuple(cells))).short

    assert "2.0 times as fast" in short(200, 205, 195)
    assert "no evidence" in short(200, 700, 195)


def test_why_counts_turns_and_tokens(tmp_path: Path) -> None:
    mixed, sorted_ = ["a", "b"] * 20, ["a"] * 20 + ["b"] * 20

    def answer(plain_tokens: float) -> StudyAnswer:
        return why(
            Cells(
                tuple(
                    cell(
                        tmp_path,
                        "size",
                        Made([100.0] * 40, contexts=contexts),
                        figures={"computed_prompt_tokens": tokens},
                        target=target,
                        kv_tokens=5120,
                    )
                    for target, contexts, tokens in (
                        (PLAIN, mixed, plain_tokens),
                        (ORDERED, sorted_, 1000.0),
                    )
                )
            )
        )

    assert "3.0 times as many prompt tokens" in answer(3000).short
    assert "first come 40 times (at least 2 are needed); by context 2 times" in said(answer(3000))
    assert answer(3000).short.startswith("With 5,120 tokens of cache, the smallest here, a context")
    assert "it does not: both orders" in answer(1010).short
    assert "computes more prompt tokens (1,000 against 300)" in answer(300).short


def test_turns_are_those_of_a_run_however_many_there_are(tmp_path: Path) -> None:
    made = Made([100.0] * 40, contexts=["a", "b"] * 20)
    no_tokens: dict[str, float | None] = {"computed_prompt_tokens": None}
    cells = [
        cell(tmp_path, "size", made, at, figures=no_tokens, target=target, kv_tokens=5120)
        for at, target in enumerate((PLAIN, PLAIN, PLAIN, ORDERED), 1)
    ]
    answer = why(Cells(tuple(cells)))
    assert "first come 40 times (at least 2 are needed); by context 40 times" in answer.short
    assert answer.tables[0].rows[0] == ("first come", "3", "40", "2", "")


def lengths(folder: Path, cached_ms_per_token: float, computed_ms_per_token: float) -> StudyAnswer:
    tokens = np.linspace(300, 5000, 60)
    wobble = np.random.default_rng(3).standard_normal(60)
    hits = Made(
        (20 + cached_ms_per_token * tokens + wobble).tolist(), tokens.tolist(), tokens.tolist()
    )
    misses = Made((20 + computed_ms_per_token * tokens + wobble).tolist(), tokens.tolist())
    return by_length(
        Cells(
            (
                cell(folder, "length", hits, target=PLAIN, users=1),
                cell(folder, "length", misses, target=NO_REUSE, users=1),
            )
        )
    )


def test_latency_by_length_is_told_for_computed_and_cached(tmp_path: Path) -> None:
    short = lengths(tmp_path, 0.01, 0.1).short
    assert short.startswith(
        "With one user, the first token takes 285 ms where prompts are computed"
    )
    assert " (mean), and each further 1,000 prompt tokens add 100 ms (" in short
    assert "and 10.1 ms (9.9 ms to 10.3 ms) where" in short
    assert "do not know how much runs differ" in said(lengths(tmp_path, 0.01, 0.1))
    assert "no evidence that they add less" in lengths(tmp_path, 0.0999, 0.1).short
    assert "no evidence that the time to first token grows" in lengths(tmp_path, 0, 0).short


def test_slopes_of_runs_say_how_much_runs_differ(tmp_path: Path) -> None:
    """Each run is a straight line, but not the same one."""

    def short(*ms_per_token: float) -> str:
        tokens = np.linspace(300, 5000, 12)
        cells = (
            cell(
                tmp_path,
                "length",
                Made((20 + slope * tokens).tolist(), tokens.tolist()),
                at,
                target=NO_REUSE,
                users=1,
            )
            for at, slope in enumerate(ms_per_token, 1)
        )
        return by_length(Cells(tuple(cells))).short

    assert "add 100 ms (97.5 ms to 102 ms) to the time" in short(0.1, 0.101, 0.099)
    assert "no evidence that the time to first token grows" in short(0.1, 0.3, 0.01)


def test_reuse_is_called_what_it_is(tmp_path: Path) -> None:
    def short(without_ms: float, with_ms: float, spread: float) -> str:
        sides = ((NO_REUSE, without_ms), (PLAIN, with_ms))
        return with_and_without(
            Cells(
                tuple(
                    cell(tmp_path, "length", Made(noisy(ms, spread, at)), target=target, users=8)
                    for at, (target, ms) in enumerate(sides)
                )
            )
        ).short

    assert "8 users at once, reuse makes the first token come 3.0 times as fast" in short(
        300, 100, 0.05
    )
    assert "take 3.0 times as long" in short(100, 300, 0.05)
    assert "no evidence" in short(100, 101, 0.5)


def test_repeats_are_set_against_new_requests_of_the_same_run(tmp_path: Path) -> None:
    def text(old_ms: float) -> str:
        is_old = [at % 2 == 0 for at in range(80)]
        times = [old_ms + at % 5 if old else 300.0 + at % 7 for at, old in enumerate(is_old)]
        cached = [500.0 * old for old in is_old]
        made = Made(times, repeats=is_old, cached_tokens=cached)
        return said(
            old_requests(
                Cells((cell(tmp_path, "repeat", made, target=PLAIN, kv_tokens=5120, users=1),))
            )
        )

    assert "a cache of 5,120 tokens still has 50 % of the prompt of an old request" in text(100)
    assert "begins 3.0 times as fast" in text(100)
    assert "no evidence of a difference" in text(301)


def test_repeats_and_new_requests_of_one_run_are_paired(tmp_path: Path) -> None:
    """Runs differ much, but in each an old request takes half the time."""
    is_old = [at % 2 == 0 for at in range(80)]
    cells = tuple(
        cell(
            tmp_path,
            "repeat",
            Made([ms / (1 + old) + at % 5 for at, old in enumerate(is_old)], repeats=is_old),
            repeat,
            target=PLAIN,
            kv_tokens=5120,
            users=1,
        )
        for repeat, ms in enumerate((300, 900, 2700), 1)
    )
    assert "begins 2.0 times as fast" in said(old_requests(Cells(cells)))


def test_diversity_is_told_against_the_fewest_contexts(tmp_path: Path) -> None:
    cells = [
        cell(
            tmp_path,
            "diversity",
            Made(noisy(ms, 0.05, at)),
            figures={"hit_rate": rate},
            contexts=contexts,
            kv_tokens=10240,
            zipf=0,
            stickiness=sticky,
            users=1,
        )
        for at, (contexts, sticky, ms, rate) in enumerate(
            ((3, 0, 100, 0.9), (12, 0, 102, 0.8), (48, 0, 300, 0.1), (48, 0.8, 100, 0.7))
        )
    ]
    text = said(diversity(Cells(tuple(cells))))
    assert "3.0 times as long with 48" in text
    assert re.search(r"with 12 .*\(.+ %.*\) there is no evidence of a difference in time", text)
    assert "With one user, a cache of 10,240 tokens has 90 %, 80 % and 10 % of" in text
    assert "where requests draw at random from 3, 12 and 48 contexts." in text
    assert "48 contexts and one user: mean TTFT is " in text
    assert "ms with all contexts alike and" in text
    assert "(-6" in text


def test_no_cache_is_enough_where_nothing_returns() -> None:
    once = Trace(tuple(Chain((at * 2 + 1, at * 2 + 2), 300, 8) for at in range(20)), 128)
    assert knee([predict(once)], 4096).startswith("No cache helps")
    again = Trace(tuple(Chain((at % 4 * 2 + 1, at % 4 * 2 + 2), 300, 8) for at in range(20)), 128)
    assert "MB) are enough for this workload, because" in knee([predict(again)], 4096)


def test_the_cache_that_is_enough_is_so_for_every_order() -> None:
    def curve(contexts: int) -> CacheCurve:
        names = [(2 * (at % contexts) + 1, 2 * (at % contexts) + 2) for at in range(60)]
        return predict(Trace(tuple(Chain(name, 300, 8) for name in names), 128))

    few, many = curve(3), curve(9)
    most = many.knee.enough_tokens
    assert most > few.knee.enough_tokens
    text = knee([few, many], None)
    assert text.startswith(f"{most:,} tokens are enough")
    assert f"The 2 orders that were sent need {few.knee.enough_tokens:,} to {most:,}" in text


@pytest.mark.parametrize(
    ("measured", "words"), [(0.51, "size a cache by it"), (0.6, "do not rely")]
)
def test_a_prediction_that_is_off_is_not_recommended(measured: float, words: str) -> None:
    found = error([MeasuredRun("run", 5120, measured, 0.5, 40, 1)])
    assert words in found[1]


def arms(folder: Path, spread: float = 0.05, **ms: float) -> StudyAnswer:
    rows = (
        (PLAIN, "oracle", 400.0),
        (PLAIN, "rag", 450.0),
        *((ORDERED, label, value) for label, value in ms.items()),
    )
    return order_by_label(
        Cells(
            tuple(
                cell(
                    folder,
                    "labels",
                    Made(noisy(value, spread, at)),
                    target=target,
                    labels=label,
                    rag_wrong=0,
                )
                for at, (target, label, value) in enumerate(rows)
            )
        )
    )


def test_found_labels_keep_lose_or_have_no_gain(tmp_path: Path) -> None:
    assert "keeps its gain" in arms(tmp_path, oracle=200, rag=225).short
    assert "shows no clear loss of its gain" in arms(tmp_path, 0.3, oracle=200, rag=255).short
    assert "with found ones there is not" in arms(tmp_path, oracle=200, rag=450).short
    assert "Even given contexts show no gain" in arms(tmp_path, oracle=400, rag=200).short
    assert "Not measured" in arms(tmp_path, oracle=200).short


def test_a_part_of_the_gain_is_lost_where_runs_of_the_same_seeds_say_so() -> None:
    given = {str(seed): math.log(0.6 + 0.01 * seed) for seed in range(4)}
    worse = {seed: value + math.log(1.2) for seed, value in given.items()}
    is_less, told = gain_lost(given, worse)
    assert is_less
    assert told == " (1.20 times the share, 1.20 to 1.20; more in 4 of 4 runs)"
    mixed = worse | {"0": given["0"] - 0.4}
    is_less, told = gain_lost(given, mixed)
    assert not is_less
    assert "more in 3 of 4 runs" in told
    assert gain_lost(given, {seed: worse[seed] for seed in "01"}) == (False, "")


def test_retrieval_does_not_hide_what_the_found_label_keeps(tmp_path: Path) -> None:
    """Order halves what the engine takes; retrieval adds 400 ms to each request before."""

    def side(target: str, label: str, ms: float, retrieval_ms: float) -> StudyCell:
        times = [ms + retrieval_ms + at % 7 for at in range(60)]
        made = Made(times, retrieval_ms=[retrieval_ms] * 60 if retrieval_ms else ())
        return cell(tmp_path, "labels", made, target=target, labels=label, rag_wrong=0)

    answer = order_by_label(
        Cells(
            (
                side(PLAIN, "oracle", 200, 0),
                side(ORDERED, "oracle", 100, 0),
                side(PLAIN, "rag", 200, 400),
                side(ORDERED, "rag", 100, 400),
            )
        )
    )
    assert answer.short.startswith("Serving by context keeps its gain where contexts are found")
    text = said(answer)
    assert "By context, with contexts that were found: the first token comes 1.2 times" in text
    assert "that were found, retrieval left out: the first token comes 2.0 times" in text
    assert "asks no label" in text


def test_what_is_not_known_of_an_order_is_said_in_words(tmp_path: Path) -> None:
    text = said(arms(tmp_path, oracle=400))
    assert "By context, with true labels: there is no evidence of a difference" in text
    cells = (cell(tmp_path, "labels", Made([100.0] * 5), target=ORDERED, labels="oracle"),)
    text = said(order_by_label(Cells(cells)))
    assert "By context, with true labels: not measured, so that" in text


def test_accuracy_by_documents_has_an_interval(tmp_path: Path) -> None:
    def text(many: float) -> str:
        return said(
            documents(
                Cells(
                    tuple(
                        cell(
                            tmp_path,
                            "documents",
                            Made([100.0] * 200, right=[at < 200 * share for at in range(200)]),
                            figures={"retrieval_p50_ms": 20.0},
                            users=24,
                            **({"corpus": "6"} if few else {}),
                        )
                        for few, share in ((True, 0.9), (False, many))
                    )
                )
            )
        )

    assert "90 % (83 % to 94 %) with 6 documents" in text(0.6)
    assert "the intervals count each question once" in text(0.6)
    assert "worse" in text(0.6)
    assert "no evidence that accuracy differs" in text(0.88)


def test_accuracy_is_compared_question_by_question(tmp_path: Path) -> None:
    """Ten of 100 questions are lost with more documents and none is won: intervals of both shares
    overlap, but no question speaks for more documents."""

    def text(lost: int, won: int) -> str:
        few = [at // 2 not in range(won) for at in range(200)]
        many = [at // 2 not in range(50, 50 + lost) for at in range(200)]
        cells = (
            cell(tmp_path, "documents", Made([100.0] * 200, right=few), users=1, corpus="6"),
            cell(tmp_path, "documents", Made([100.0] * 200, right=many), users=1),
        )
        return said(documents(Cells(cells)))

    assert "Labels are worse with 24 documents than with 6: of 100 questions asked with" in text(
        10, 0
    )
    assert "10 were right more often with 6 documents and 0 with 24" in text(10, 0)
    assert "no evidence that accuracy differs" in text(6, 4)


def test_only_the_whole_is_100_percent() -> None:
    said = [percent(share) for share in (0.994, 0.996, 0.9999, 1, -0.996)]
    assert said == ["99 %", "99.6 %", "99.9 %", "100 %", "-99.6 %"]


def test_retrieval_share_is_told_for_each_crowd(tmp_path: Path) -> None:
    cells = tuple(
        cell(
            *(tmp_path, "users", Made([100.0] * 40)),
            figures={"retrieval_share": share},
            users=users,
            target=PLAIN,
            kv_tokens=40960,
        )
        for users, share in ((1, 0.4), (24, 0.1))
    )
    assert retrieval(Cells(cells)).short == (
        "Of all time to first token of a run, retrievals are 40 % with one user and 10 % with 24"
        " users at once (first come, 40,960 tokens of cache)."
    )


def test_how_relevance_is_decided_is_told_with_what_was_refused(tmp_path: Path) -> None:
    cells = [
        cell(
            *(tmp_path, "documents", Made([100.0] * 40)),
            figures={"refused_share": 0.03, "retrieval_share": 0.04, "retrieval_p50_ms": 90.0},
            corpus=6,
            target=ORDERED,
            kv_tokens=5120,
        )
    ]
    answer = relevance(Cells(tuple(cells)))
    assert "cosine" in answer.short
    assert "BM25" in answer.short
    assert "3.0 % of the questions were refused with" in said(answer)
    found = said(documents(Cells(tuple(cells))))
    assert "4.0 % of the time to first token (by context, 5,120 tokens of cache)" in found


def test_sentence_table_and_picture_have_one_middle(tmp_path: Path) -> None:
    """100, 110 and 400 ms: their geometric mean is 164, their median 110, their mean 203."""
    cells = Cells(
        tuple(
            cell(
                tmp_path,
                "size",
                Made([factor * ms] * 40),
                seed,
                target=target,
                kv_tokens=size,
            )
            for target, factor in ((PLAIN, 1), (ORDERED, 0.5))
            for size in (5120, 10240)
            for seed, ms in enumerate((100.0, 110.0, 400.0), 1)
        )
    )
    answer = BATCH.answer(cells)
    against, figures = answer.tables
    assert against.rows[0][1:3] == ("164 ms", "81.9 ms")
    shown = {row[1]: row[figures.header.index("TTFT mean")] for row in figures.rows}
    assert shown == {PLAIN: "164 ms (100 ms to 400 ms)", ORDERED: "81.9 ms (50.0 ms to 200 ms)"}
    (picture,) = answer.pictures
    first, ordered = picture.figure.axes[1].containers
    for container, middle_ms in ((first, 163.9), (ordered, 81.9)):
        assert container.lines[0].get_ydata() == pytest.approx(middle_ms, abs=0.05)
