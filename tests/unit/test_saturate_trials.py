"""Trials judged: queues whose waiting times are known, engines that cannot keep up, objectives."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from loadgen.errors import RecordError, UsageError
from loadgen.launch.search import SaturationSearch, _require_searched, trial_words
from loadgen.record import CAME_TOO_LATE
from loadgen.runs.csv_log import to_csv
from loadgen.runs.exit_code import TARGET_DIED, UNRECORDED, WRONG_USE
from loadgen.saturate.folder import SearchFolder, points_of
from loadgen.saturate.judge import judge
from loadgen.saturate.objective import Objective
from loadgen.saturate.search import Space
from loadgen.saturate.search_state import SearchPlan, SearchState, TrialStep
from loadgen.saturate.trial import Trial, read_trial
from loadgen.saturate.wording import figures, result_lines
from loadgen.workload.arrivals import Rate

HEADER = (
    *("request_id", "scheduled_s", "sent_s", "end_s", "ttft_ms", "e2e_ms", "tpot_ms"),
    *("output_tokens", "outcome"),
)
PER_S = 20.0
"""What the queue's server does on average."""


def queue(folder: Path, rate: float, seconds: float, seed: int, drain_s: float = 30.0) -> Path:
    """A run directory of an M/M/1 queue: first come, first served, exponential times."""
    dice = np.random.default_rng(seed)
    due_s = np.cumsum(dice.exponential(1 / rate, int(2 * rate * seconds) + 20))
    due_s = due_s[due_s < seconds]
    service_s = dice.exponential(1 / PER_S, len(due_s))
    free_s, rows = 0.0, []
    for number, (due, service) in enumerate(zip(due_s, service_s, strict=True)):
        free_s = max(free_s, due) + service
        is_ok = free_s <= seconds + drain_s
        end_s = free_s if is_ok else seconds + drain_s
        ttft_ms = 1000 * (end_s - due) if is_ok else None
        outcome = "ok" if is_ok else "cancelled"
        rows.append([number, due, due, end_s, ttft_ms, ttft_ms, 5.0, 4, outcome])
    return write(folder, rows)


def write(folder: Path, rows: Sequence[Sequence[Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "requests.csv").write_text(to_csv([HEADER, *rows]))
    return folder


def plan(objective: str, **fields: Any) -> SearchPlan:
    known: dict[str, Any] = {
        "objective": Objective.parse(objective),
        "space": Space("rate", 2.0, None, 0.05),
        "trial_s": 60.0,
        "most_trials": 40,
        "seed": 0,
        "warm_up_s": None,
        "words": (),
    }
    return SearchPlan(**known | fields)


def run(state: SearchState, folder: Path, seed: int) -> SearchState:
    while (step := state.next(1 + len(state.trials))) is not None:
        path = queue(folder / step.name, step.load, step.seconds, 1000 * seed + step.number)
        state.add(step, read_trial(path, step.load, step.seconds, is_open=True))
    return state


@pytest.mark.parametrize("seed", range(4))
def test_a_queue_is_loaded_up_to_what_theory_says(tmp_path: Path, seed: int) -> None:
    """The time in an M/M/1 queue is exponential with rate mu - lambda: p90 = ln 10 / that."""
    most_ms = 600
    right = PER_S - math.log(10) / (most_ms / 1000)
    state = run(SearchState(plan(f"ttft_ms.p90<={most_ms}, errors<=1%")), tmp_path, seed)
    assert state.ending == "found"
    below, above = state.bracket.below, state.bracket.above
    assert below is not None
    assert above is not None
    assert 0.75 * right <= below.load <= 1.12 * right
    assert below.load < above.load <= 1.06 * below.load


def test_a_queue_that_grows_is_too_much_whatever_its_percentiles(tmp_path: Path) -> None:
    state = run(SearchState(plan("ttft_ms.p95<=100000")), tmp_path, seed=1)
    assert state.bracket.below is not None
    assert 0.8 * PER_S <= state.bracket.below.load <= 1.15 * PER_S
    assert "queue grew" in state.judgements[32.0].reason


def test_few_trials_are_no_narrow_bracket(tmp_path: Path) -> None:
    state = run(SearchState(plan("ttft_ms.p90<=600", most_trials=5)), tmp_path, seed=0)
    assert (len(state.trials), state.ending) == (5, "trials")


def trial(
    folder: Path, rows: Sequence[Sequence[Any]], seconds: float = 10.0, is_open: bool = True
) -> Trial:
    return read_trial(write(folder, rows), 1.0, seconds, is_open, warm_up_s=0.0)


def steady_rows(count: int, ttft_ms: float = 100.0, outcome: str = "ok") -> list[list[Any]]:
    return [
        [n, n / 20, n / 20, n / 20 + 0.2, ttft_ms, 200.0, 5.0, 4, outcome] for n in range(count)
    ]


def test_what_was_never_served_is_late_when_it_waited_longer_than_the_limit(
    tmp_path: Path,
) -> None:
    rows = steady_rows(160)
    rows += [[200 + n, n / 5, None, n / 5, None, None, None, None, "cancelled"] for n in range(40)]
    rows.append([300, 1.0, 1.0, 30.0, 100.0, 29_000.0, 5.0, 4, "ok"])
    late = judge([trial(tmp_path, rows)], Objective.parse("ttft_ms.p95<=500"))
    assert late.finding.verdict == "missed"
    patient = judge([trial(tmp_path, rows)], Objective.parse("ttft_ms.p95<=26000"))
    assert patient.figures[0].samples == 161 + 20


def test_late_requests_are_unserved_however_their_outcome_is_called(tmp_path: Path) -> None:
    rows = steady_rows(160)
    for row in rows[::8]:
        row[3:] = [30.0, None, 30_000.0, None, None, "timeout"]
    path = write(tmp_path, rows)
    lines = (path / "requests.csv").read_text().splitlines()
    lines = [f"{lines[0]},late", *(f"{x},{'true' if 'timeout' in x else ''}" for x in lines[1:])]
    (path / "requests.csv").write_text("\n".join(lines) + "\n")
    found = read_trial(path, 1.0, 10.0, is_open=True, warm_up_s=0.0)
    assert found.outcomes == {"arrivals": 160, "ok": 140, "failed": 0, "unserved": 20}
    assert judge([found], Objective.parse("ttft_ms.p95<=500")).finding.verdict == "missed"
    figure = judge([found], Objective.parse("ttft_ms.p95<=26000, errors<=20%")).figures[0]
    assert figure.samples == 160 - 20 + sum(30_000 - n * 50 > 26_000 for n in range(0, 160, 8))


def test_what_this_client_came_too_late_to_send_is_not_the_hosts_fault(tmp_path: Path) -> None:
    path = write(tmp_path, steady_rows(160))
    lines = (path / "requests.csv").read_text().splitlines()
    unsent = [f"{200 + n},{n / 5},,9.9,,,,,cancelled,{CAME_TOO_LATE}" for n in range(40)]
    lines = [f"{lines[0]},error", *(f"{line}," for line in lines[1:])]
    rows = [line.replace(CAME_TOO_LATE, f'"{CAME_TOO_LATE}"') for line in unsent]
    (path / "requests.csv").write_text("\n".join([*lines, *rows]) + "\n")
    found = read_trial(path, 1.0, 10.0, is_open=True, warm_up_s=0.0)
    assert found.outcomes == {"arrivals": 160, "ok": 160, "failed": 0, "unserved": 0}


def test_failures_and_goodput_are_judged(tmp_path: Path) -> None:
    rows = steady_rows(200)
    for row in rows[::10]:
        row[4:] = [*[None] * 4, "http_error"]
    found = judge([trial(tmp_path, rows)], Objective.parse("ttft_ms.p95<=500"))
    assert found.finding.verdict == "missed"
    assert [figure.verdict for figure in found.figures] == ["met", "missed"]
    good = Objective.parse("ttft_ms<=150, goodput>=80%, errors<=20%")
    assert judge([trial(tmp_path, rows)], good).finding.verdict == "met"
    better = Objective.parse("ttft_ms<=90, goodput>=80%, errors<=20%")
    assert judge([trial(tmp_path, rows)], better).finding.verdict == "missed"


def test_an_unknown_figure_keeps_no_objective(tmp_path: Path) -> None:
    unknown = steady_rows(200)
    for row in unknown:
        row[6:8] = [None, None]
    objective = Objective.parse("tpot_ms<=50, goodput>=95%")
    assert judge([trial(tmp_path / "a", unknown)], objective).finding.verdict == "missed"
    single = [[*row[:6], None, 1, "ok"] for row in unknown]
    assert judge([trial(tmp_path / "b", single)], objective).finding.verdict == "met"
    several = [*HEADER, "itl_mean_ms"], *([*row, 20.0] for row in single)
    (tmp_path / "b" / "requests.csv").write_text(to_csv(several))
    of_several = read_trial(tmp_path / "b", 1.0, 10.0, is_open=True, warm_up_s=0.0)
    assert judge([of_several], objective).finding.verdict == "missed"
    of_values = Objective.parse("tpot_ms.p95<=50")
    assert judge([trial(tmp_path / "c", unknown)], of_values).finding.verdict == "undecided"


def test_too_few_requests_decide_nothing_and_ask_for_more(tmp_path: Path) -> None:
    objective = Objective.parse("ttft_ms.p95<=500")
    few = judge([trial(tmp_path, steady_rows(50))], objective)
    assert (few.finding.verdict, few.finding.wants_more) == ("undecided", True)
    again = trial(tmp_path, steady_rows(50))
    assert judge([again, again], objective).finding.verdict == "met"
    rare = judge([trial(tmp_path, steady_rows(60))], Objective.parse("ttft_ms.p99.9<=500"))
    assert (rare.finding.verdict, rare.finding.wants_more) == ("met", False)
    assert [figure.limit.text for figure in rare.unproven] == ["ttft_ms.p99.9<=500"]


def test_runs_that_differ_are_not_proof_however_many_requests_they_have(tmp_path: Path) -> None:
    """Of 400 requests in each run 2.5 % are late in both, or 1 % in one and 4.5 % in the other:
    those of one run, that are alike, say little of the next."""
    objective = Objective.parse("ttft_ms.p95<=500")

    def late(folder: str, every: int) -> Trial:
        rows = steady_rows(400)
        for row in rows[every - 1 :: every]:
            row[4] = 900.0
        return trial(tmp_path / folder, rows, is_open=False)

    alike = judge([late("a", 40), late("b", 40)], objective)
    assert alike.finding.verdict == "met"
    differing = judge([late("c", 100), late("d", 22)], objective)
    assert differing.finding.verdict == "undecided"
    within = differing.figures[0].within
    assert within is not None
    assert within.high <= 1


def test_a_lowest_load_with_too_few_requests_is_not_said_to_be_too_high(tmp_path: Path) -> None:
    state = SearchState(plan("ttft_ms.p95<=500", space=Space("rate", 1.0, None, 0.05)))
    step = state.next(1)
    assert step is not None
    state.add(step, trial(tmp_path, steady_rows(20)))
    said = next(result_lines(state, state.ending))
    assert said.startswith("undecided at 1/s, the lowest rate")
    assert "longer --trial" in said


def test_a_host_that_is_gone_later_is_no_wrong_use(tmp_path: Path) -> None:
    state = SearchState(plan("ttft_ms.p95<=500", space=Space("rate", 1.0, None, 0.05)))
    search = SaturationSearch(state.plan, SearchFolder(tmp_path), state, cast(Any, None))
    (tmp_path / "swarm.log").write_text("kvswarm: error: no host at http://host\n")
    with pytest.raises(UsageError, match="no host at"):
        search._fault(WRONG_USE, tmp_path)
    step = state.next(1)
    assert step is not None
    state.add(step, trial(tmp_path, steady_rows(200)))
    assert search._fault(WRONG_USE, tmp_path) == "target"
    assert "no host at" in search.fault
    assert search.code == TARGET_DIED


def test_a_search_ends_where_its_trials_can_be_recorded_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, gone = SearchState(plan("ttft_ms.p95<=500")), tmp_path / "gone"
    search = SaturationSearch(state.plan, SearchFolder(gone), state, cast(Any, None))
    for code in (UNRECORDED, TARGET_DIED):
        with pytest.raises(RecordError, match="gone could be written no more") as raised:
            search._fault(code, gone)
        assert raised.value.exit_code == UNRECORDED
    monkeypatch.setattr(SaturationSearch, "_next", None)
    with pytest.raises(RecordError, match="gone could be written no more"):
        search.make()
    assert capsys.readouterr().out.splitlines() == list(result_lines(state, state.ending))


def test_a_search_that_was_deleted_between_two_trials_is_not_begun_anew(tmp_path: Path) -> None:
    course, folder = SearchState(plan("ttft_ms.p95<=500")), SearchFolder(tmp_path / "gone")
    search = SaturationSearch(course.plan, folder, course, cast(Any, None))
    with pytest.raises(RecordError, match=r"01-2 could be written no more \(No such file"):
        asyncio.run(search._trials(cast(Any, None)))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_note_of_a_trial_is_named(tmp_path: Path) -> None:
    folder, note = SearchFolder(tmp_path), tmp_path / "trials" / "01-2" / "trial.json"
    note.parent.mkdir(parents=True)
    for content in ("{}", '{"number": 1, "load": "2", "repeat": 1, "seed": 0, "seconds": 30}'):
        note.write_text(content)
        with pytest.raises(UsageError, match=r"trial\.json is not as kvswarm writes it"):
            _ = folder.finished


@pytest.mark.parametrize(
    ("is_over", "ending", "code"), [(True, "found", 0), (False, "stopped", 130)]
)
def test_ctrl_c_while_the_engine_stops_leaves_a_search_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool, ending: str, code: int
) -> None:
    async def found(*_: object) -> str:
        return "found"

    @asynccontextmanager
    async def interrupted_stop(*_: object) -> AsyncIterator[None]:
        yield
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)

    monkeypatch.setattr("loadgen.launch.search.run_series", interrupted_stop)
    monkeypatch.setattr(SaturationSearch, "_trials", found)
    monkeypatch.setattr(SaturationSearch, "_next", None if is_over else "a step")
    state = SearchState(plan("ttft_ms.p95<=500"))
    search = SaturationSearch(state.plan, SearchFolder(tmp_path), state, cast(Any, None))
    assert (asyncio.run(search._search()), search.code) == (ending, code)


def test_what_comes_before_the_warm_up_ends_is_left_out(tmp_path: Path) -> None:
    rows = steady_rows(400)
    for row in rows[:60]:
        row[4] = 5000.0
    found = read_trial(write(tmp_path, rows), 20.0, 20.0, is_open=True)
    assert 2.9 <= found.warm_up_s <= 5
    assert found.values("ttft_ms").max() == 100.0


@pytest.mark.parametrize(
    ("load", "word"), [(5e-05, "--rate=0.00005"), (6.2, "--rate=6.2"), (1e6, "--rate=1000000")]
)
def test_the_rate_of_a_trial_is_one_that_a_run_takes(load: float, word: str) -> None:
    step = TrialStep(number=1, load=load, repeat=1, seed=0, seconds=30)
    assert word in trial_words(plan("ttft_ms.p95<=500"), step)
    assert Rate.parse(word.removeprefix("--rate=")).phases[0].first == load


def test_a_load_shape_that_reads_its_users_may_be_searched() -> None:
    swarm = {"load_shape": "Morning", "shape_hears": True}
    _require_searched(plan("ttft_ms.p95<=500"), {"swarm": swarm})
    with pytest.raises(UsageError, match="load shape Morning is not for a search"):
        _require_searched(plan("ttft_ms.p95<=500"), {"swarm": {**swarm, "shape_hears": False}})


def test_low_loads_have_longer_trials() -> None:
    short = plan("ttft_ms.p95<=500", trial_s=30.0)
    assert short.seconds(1.0) == 120
    assert short.seconds(100.0) == 30
    assert 30 < short.seconds(2.0) <= 120


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft_ms.p95<=500", "ttft_ms.p95<=500, errors<=1%"),
        ("p95 ttft_ms <= 500, errors<=0.1%", "ttft_ms.p95<=500, errors<=0.1%"),
        ("ttft_ms<=500,tpot_ms<=50,goodput>=95%", "ttft_ms<=500,tpot_ms<=50, goodput>=95%,"),
    ],
)
def test_objectives_are_read(text: str, said: str) -> None:
    assert str(Objective.parse(text)).startswith(said)


@pytest.mark.parametrize("limits", ["p95<=500, ttft_ms.p50<=90", "p50<=90, ttft_ms.p95<=500"])
def test_goodput_is_of_the_widest_limit_in_whatever_order(tmp_path: Path, limits: str) -> None:
    state = SearchState(plan(f"ttft_ms.{limits}"))
    step = state.next(1)
    assert step is not None
    state.add(step, trial(tmp_path, steady_rows(40)))
    (point,) = points_of(state)
    assert point.goodput == 1.0
    assert (point.p50_ms, point.p95_ms, point.p99_ms) == (100.0, 100.0, None), "of 40 requests"


def test_a_percentile_of_too_few_requests_is_not_said(tmp_path: Path) -> None:
    objective = Objective.parse("ttft_ms.p99.9<=500")
    few, enough = (
        figures(judge([trial(tmp_path / str(count), steady_rows(count))], objective))
        for count in (999, 1000)
    )
    assert few.startswith("ttft_ms.p99.9 of 999 requests, which are too few, 100 % within it [")
    assert enough.startswith("ttft_ms.p99.9 100 ms [")


def test_as_many_errors_as_the_limit_keep_it(tmp_path: Path) -> None:
    """0.7 % of 1,000: as a fraction divided by 100 the limit would be a little less."""
    rows = steady_rows(1000)
    for row in rows[:7]:
        row[4:] = [*[None] * 4, "http_error"]
    objective = Objective.parse("ttft_ms.mean<=500, errors<=0.7%")
    assert judge([trial(tmp_path, rows)], objective).finding.verdict == "met"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "--slo: 'fast' is no limit"),
        ("ttft_ms.p95<=+10%", "is a change"),
        ("ttft_ms.p95>=5", "with <="),
        ("requests_per_s>=5", "requests_per_s is not for this"),
        ("goodput>=95%", "goodput of which requests"),
        ("ttft_ms<=500", "add goodput>=95%"),
        ("ttft.p95<=500", "--slo: unknown metric 'ttft'"),
        ("errors<=1%,errors<=2%", "limits errors twice"),
        ("ttft_ms.p95<=500,errors<=150%", "errors<=150% is more than the whole"),
        ("ttft_ms<=500,goodput>=250%", "goodput>=250% is more than the whole"),
    ],
)
def test_what_is_no_objective_is_said(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        Objective.parse(text)
    assert said in str(error.value)


def test_a_file_without_due_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("request_id,outcome\n1,ok\n")
    with pytest.raises(UsageError, match="has not the columns"):
        read_trial(tmp_path, 1.0, 10.0, is_open=True)


def test_a_search_is_told_from_another_and_keys_are_written_nowhere(tmp_path: Path) -> None:
    words = ("unordered", "--contexts=3", "--key=label", "--header", "Authorization: Bearer key-1")
    folder = SearchFolder(tmp_path, "http://a:8000", {"output_tokens": "16"})
    ours = plan("ttft_ms.p90<=600", words=words)
    folder.open(ours)
    state = run(SearchState(ours), folder.path / "trials", seed=0)
    folder.write_result(state, state.ending, [])
    folder.write_table(state)
    for step, _ in state.trials:
        folder.note(step)
    written = (tmp_path / "saturate.json").read_text()
    assert "--contexts=3" in written
    assert "key-1" not in written
    assert [step for step, _ in folder.finished] == [step for step, _ in state.trials]
    folder.check(plan("ttft_ms.p90<=600", words=words, most_trials=3))
    with pytest.raises(UsageError, match=r"another search \(objective was"):
        folder.check(plan("ttft_ms.p90<=500", words=words))
    with pytest.raises(UsageError, match=r"another search \(command was"):
        folder.check(plan("ttft_ms.p90<=600", words=[*words[:2], "--key=prefix", *words[3:]]))
    with pytest.raises(UsageError, match=r"another search \(place was http://a:8000, is vllm"):
        SearchFolder(tmp_path, "vllm").check(ours)
    with pytest.raises(UsageError, match=r"another search \(output_tokens was 16, is 256\)"):
        replace(folder, heard={"output_tokens": "256"}).check(ours)
    replace(folder, heard={"of_a_later_version": "1"}).check(ours)
