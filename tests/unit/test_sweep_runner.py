"""Making a sweep on a bench that starts nothing: what is kept, made again, given up."""

import asyncio
import contextlib
import csv
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import RecordError, TargetError, UsageError
from loadgen.runs.exit_code import DONE, UNRECORDED
from loadgen.runs.lock import locked
from loadgen.sweep.definition import Definition
from loadgen.sweep.folder import SweepFolder
from loadgen.sweep.matrix import CellEngine, CellPlan, Stretch, SweepStep, cells_of, stretches
from loadgen.sweep.runner import Durations, SweepWatch, run_sweep, spoken
from loadgen.sweep.table import FIGURES, figures_of, read_cells, read_made_cell, write_table

SWEEP = Definition(
    name="x", repeats=2, options={"users": 1}, axes={"target": ["a", "b"], "zipf": [0, 1]}
)
FIRST_TTFT_MS = 100.0
HEARD = {"output_tokens": "16", "model": ""}


class Bench:
    """Writes a run for each step. `ends` tells what becomes of a run by its name: an exit code, or
    a text that the engine dies with; `stop_at` is the run during which somebody stops the sweep,
    `delete_at` the one whose directory is deleted."""

    def __init__(
        self, ends: dict[str, int | str] | None = None, stop_at: str = "", delete_at: str = ""
    ) -> None:
        self.ends, self.stop_at, self.delete_at = ends or {}, stop_at, delete_at
        self.bare: set[str] = set()
        """Runs that end before they have a summary."""
        self.unmade: set[str] = set()
        """Engines that lack something which is found only when they are started."""
        self.started: list[str] = []
        self.made: list[str] = []
        self.said: list[str] = []
        self.is_stopped = False

    @asynccontextmanager
    async def start(
        self, engine: CellEngine, steps: Sequence[SweepStep], logs: Path
    ) -> AsyncIterator["Bench"]:
        self.started.append(engine.label)
        if engine.label in self.unmade:
            raise UsageError(f"{engine.label} needs what is not installed")
        if f"start {engine.label}" in self.ends:
            raise TargetError(f"{engine.label} was not ready")
        logs.mkdir(parents=True)  # noqa: ASYNC240
        (logs / "engine.log").write_text(steps[0].name)
        yield self

    async def run(self, step: SweepStep, out: Path) -> int:
        self.made.append(step.name)
        end = self.ends.get(step.name, 0)
        started = {"start_unix_s": 1000.0 + len(self.made), "cache_state": "cold"}
        if end == 2:
            (out / "swarm.log").write_text("kvswarm: the host refused\n")
            return 2
        write(out / "run.json", started)
        if isinstance(end, str):
            raise TargetError(end)
        if step.name == self.stop_at:
            self.is_stopped = True
        write(out / "run.json", {**started, "exit_code": end, "target": {"usable_tokens": 2560}})
        if step.name not in self.bare:
            write(out / "summary.json", summary(FIRST_TTFT_MS + len(self.made)))
        if step.name == self.delete_at:
            shutil.rmtree(out)
        return end


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content))


def summary(ttft_ms: float) -> dict[str, Any]:
    return {
        "requests": 10,
        "failed": 1,
        "outcomes": {"ok": 9},
        "metrics": {
            "ttft_ms": {"count": 9, "mean": ttft_ms, "p50": ttft_ms, "p95": None, "p99": None},
            "prompt_tokens": {"count": 9, "mean": 100.0},
        },
        "server": {"hit_rate": 0.25, "peak_kv_cache_usage": 0.5},
        "client_saturated": False,
    }


def order(definition: Definition, cells: Sequence[CellPlan] | None = None) -> list[Stretch]:
    def engine(cell: CellPlan) -> CellEngine:
        return CellEngine(cell.axes["target"], True, cell.axes["target"])

    return stretches(definition, cells or cells_of(definition), engine)


def make(out: Path, bench: Bench, definition: Definition = SWEEP) -> Bench:
    folder = SweepFolder(out)
    cells = folder.checked(definition, cells_of(definition))
    planned = order(definition, cells)
    folder.open(definition, cells, planned, HEARD)
    watch = SweepWatch(bench.said.append, lambda: bench.is_stopped)
    asyncio.run(run_sweep(planned, folder, bench, Durations({}), watch))
    return bench


def names(definition: Definition = SWEEP) -> list[str]:
    """All runs in the order in which they are to be made."""
    return [step.name for stretch in order(definition) for step in stretch.steps]


def test_a_cell_that_is_of_another_host_now_is_refused(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    SweepFolder(tmp_path).check_places(order(SWEEP))
    elsewhere = CellEngine("http://b:8000", False, "http://b:8000")
    moved = stretches(SWEEP, cells_of(SWEEP), lambda cell: elsewhere)
    with pytest.raises(UsageError, match="which is of http://b:8000 now: give another --out"):
        SweepFolder(tmp_path).check_places(moved)


def test_a_load_that_the_environment_has_changed_is_refused(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    folder = SweepFolder(tmp_path)
    folder.check_heard(HEARD)
    folder.check_heard({**HEARD, "of_a_later_version": "1"})
    for name, was, value in (("output_tokens", "16", "256"), ("model", "unset", "trained")):
        flag = name.replace("_", "-")
        with pytest.raises(UsageError, match=f"cells with --{flag} {was}, which is {value} now"):
            folder.check_heard({**HEARD, name: value})


def test_all_are_made_in_order_on_as_few_starts_as_planned(tmp_path: Path) -> None:
    bench = make(tmp_path, Bench())
    assert bench.made == names()
    assert bench.started == [stretch.engine.label for stretch in order(SWEEP)]
    assert [cell.run.name for cell in read_cells(tmp_path)] == names()
    assert [cell.position for cell in read_cells(tmp_path)] == list(range(1, 9))
    assert [line.split()[0] for line in bench.said] == [f"[{n}/8]" for n in range(1, 9)]


def test_each_run_leads_to_the_logs_of_its_own_engine(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    for stretch in order(SWEEP):
        for step in stretch.steps:
            log = tmp_path / "cells" / step.name / "engine" / "engine.log"
            assert log.read_text() == stretch.steps[0].name


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    again = make(tmp_path, Bench())
    assert (again.made, again.started) == ([], [])


def test_a_stopped_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    stopped = make(tmp_path, Bench(stop_at=names()[2]))
    assert stopped.made == names()[:3]
    assert [cell.run.name for cell in read_cells(tmp_path)] == names()[:2]
    resumed = make(tmp_path, Bench())
    assert resumed.made == names()[2:]
    kept = tmp_path / "aside" / f"{names()[2]}-1"
    assert json.loads((kept / "summary.json").read_text())["requests"] == 10, "nothing is lost"
    assert str(kept) in resumed.said[0]
    assert [cell.position for cell in read_cells(tmp_path)] == list(range(1, 9))


def test_runs_that_failed_are_kept_and_the_sweep_goes_on(tmp_path: Path) -> None:
    failed, saturated = names()[0], names()[3]
    bench = make(tmp_path, Bench({failed: 1, saturated: 5}))
    assert bench.made == names()
    codes = {cell.run.name: cell.exit_code for cell in read_cells(tmp_path)}
    assert codes == {**dict.fromkeys(names(), 0), failed: 1, saturated: 5}
    validity = {cell.run.name: cell.valid for cell in read_cells(tmp_path)}
    assert (validity[failed], validity[saturated]) == (True, False), "failures are measured"
    assert make(tmp_path, Bench()).made == []


def test_a_dead_engine_is_started_again_for_the_next(tmp_path: Path) -> None:
    first = names()[0]
    bench = make(tmp_path, Bench({first: "vllm exited with code 9"}))
    assert bench.made == names()
    assert len(bench.started) == len(order(SWEEP)) + 1
    dead = read_cells(tmp_path)[0]
    assert (dead.exit_code, dead.fault) == (3, "vllm exited with code 9")
    again = make(tmp_path, Bench())
    assert again.made == [first], "a run whose engine died is made again when asked"
    assert (tmp_path / "aside" / f"{first}-1" / "cell.json").is_file()
    assert read_cells(tmp_path)[-1].run.name == first, "its position tells when it was made"


def test_a_killed_swarm_does_not_end_the_sweep(tmp_path: Path) -> None:
    bench = make(tmp_path, Bench({names()[1]: 137}))
    assert bench.made == names()
    assert [cell.exit_code for cell in read_cells(tmp_path)].count(137) == 1


def test_a_swarm_that_did_not_begin_tells_why(tmp_path: Path) -> None:
    make(tmp_path, Bench({names()[1]: 2}))
    assert "kvswarm: the host refused" in read_cells(tmp_path)[1].fault


@pytest.mark.parametrize("code", [0, 1])
def test_a_run_without_a_summary_is_made_again_and_counts_as_dead(
    tmp_path: Path, code: int
) -> None:
    bench, bare = Bench(dict.fromkeys(names()[1:4], code)), names()[1:4]
    bench.bare |= set(bare)
    with pytest.raises(TargetError, match="3 runs in a row"):
        make(tmp_path, bench)
    assert [cell.valid for cell in read_cells(tmp_path)] == [True, False, False, False]
    again = make(tmp_path, Bench())
    assert sorted(again.made) == sorted(names()[1:])


def test_what_is_wrong_with_one_engine_does_not_end_the_others(tmp_path: Path) -> None:
    first = order(SWEEP)[0].engine.label
    bench, own = Bench(), [name for name in names() if name.startswith(first)]
    bench.unmade.add(first)
    with contextlib.suppress(TargetError):  # where the last ones are three in a row
        make(tmp_path, bench)
    made = {cell.run.name: cell for cell in read_cells(tmp_path)}
    assert any(name not in own and cell.valid for name, cell in made.items())
    told = {cell.fault for name, cell in made.items() if name in own}
    assert told == {f"{first} needs what is not installed"}


@pytest.mark.parametrize("code", [DONE, UNRECORDED])
def test_a_sweep_ends_where_its_runs_can_be_recorded_no_more(tmp_path: Path, code: int) -> None:
    second = names()[1]
    bench = Bench({second: code}, delete_at=second)
    with pytest.raises(RecordError, match=f"{second} could be written no more") as raised:
        make(tmp_path, bench)
    assert (raised.value.exit_code, bench.made) == (UNRECORDED, names()[:2])
    assert make(tmp_path, Bench()).made == names()[1:]


class Deleting(Bench):
    """While its second engine starts, somebody deletes the cells."""

    @asynccontextmanager
    async def start(
        self, engine: CellEngine, steps: Sequence[SweepStep], logs: Path
    ) -> AsyncIterator[Bench]:
        if self.started:
            shutil.rmtree(logs.parents[1])
        async with super().start(engine, steps, logs) as running:
            yield running


def test_a_sweep_that_was_deleted_between_two_runs_is_not_begun_anew(tmp_path: Path) -> None:
    bench = Deleting()
    with pytest.raises(RecordError, match="could be written no more"):
        make(tmp_path / "out", bench)
    assert bench.made == names()[:2]
    assert not (tmp_path / "out" / "cells").exists()


def test_a_full_disk_ends_it_too(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        make(tmp_path, Bench({names()[1]: UNRECORDED}))
    assert [cell.exit_code for cell in read_cells(tmp_path)] == [DONE]


def test_three_in_a_row_are_given_up(tmp_path: Path) -> None:
    bench = Bench(dict.fromkeys(names()[1:4], "no memory"))
    with pytest.raises(TargetError, match="3 runs in a row"):
        make(tmp_path, bench)
    assert bench.made == names()[:4]
    assert [cell.exit_code for cell in read_cells(tmp_path)] == [0, 3, 3, 3]


def test_an_engine_that_does_not_start_counts_too(tmp_path: Path) -> None:
    once = replace(SWEEP, engine_starts="once")
    (label, *_) = [stretch.engine.label for stretch in order(once)]
    bench = Bench({f"start {label}": 3})
    with pytest.raises(TargetError, match="3 runs in a row"):
        make(tmp_path, bench, once)
    assert bench.started == [label] * 3
    assert [cell.fault for cell in read_cells(tmp_path)] == [f"{label} was not ready"] * 3


ADDED = {
    "repeats": {"repeats": 3},
    "values": {"axes": {"target": ["b", "c", "a"], "zipf": [0, 1, 2]}},
    "cells": {"cells": ({"target": "c", "zipf": 5},)},
}


@pytest.mark.parametrize("name", ADDED)
def test_a_sweep_can_grow(tmp_path: Path, name: str) -> None:
    make(tmp_path, Bench())
    grown = replace(SWEEP, **ADDED[name])
    bench = make(tmp_path, Bench(), grown)
    assert set(bench.made) == set(names(grown)) - set(names())
    assert len(read_cells(tmp_path)) == len(names(grown))


def test_a_cell_that_sets_what_all_had_alike_is_one_more(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    users = ({"target": "a", "zipf": 0, "users": 4},)
    bench = make(tmp_path, Bench(), replace(SWEEP, cells=users))
    assert bench.made == ["a_zipf-0_users-4-r1", "a_zipf-0_users-4-r2"]
    cells = read_cells(tmp_path)
    assert len(cells) == 10
    assert {(cell.axes["users"], "users" in cell.options) for cell in cells} == {
        ("1", False),
        ("4", False),
    }
    again = make(tmp_path, Bench(), replace(SWEEP, cells=users))
    assert again.made == []


CHANGED = {
    "an option": ({"options": {"users": 2}}, "users was 1, is 2"),
    "another option": ({"options": {"users": 1, "drain": 3}}, "drain was None, is 3"),
    "the order": ({"seed": 8}, "seed was 0, is 8"),
    "the cache": ({"keep_cache": True}, "keep_cache was False, is True"),
    "fewer values": ({"axes": {"target": ["a"], "zipf": [0, 1]}}, "the cell b_zipf-0"),
    "fewer repeats": ({"repeats": 1}, "it had 2 repeats"),
    "the locustfile": ({"locustfile": "batched"}, "locustfile was unordered"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_sweep_is_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    change, said = CHANGED[name]
    make(tmp_path / "out", Bench())
    bench = Bench()
    with pytest.raises(UsageError) as raised:
        make(tmp_path / "out", bench, replace(SWEEP, source="s.toml", **change))
    assert said in str(raised.value)
    assert f"`kvswarm sweep s.toml --out {tmp_path / 'out'}-2`" in str(raised.value)
    assert bench.started == []


def test_other_versions_are_told(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    assert SweepFolder(tmp_path).changed_versions == ""
    file = tmp_path / "sweep.json"
    file.write_text(file.read_text().replace('"python": "', '"python": "2'))
    assert SweepFolder(tmp_path).changed_versions.startswith("python 2")


def test_cells_without_their_sweep_are_not_taken_for_a_new_one(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    (tmp_path / "sweep.json").unlink()
    with pytest.raises(UsageError, match=r"sweep\.json"):
        make(tmp_path, Bench())


def test_a_kill_while_a_sweep_is_opened_leaves_nothing_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("loadgen.sweep.folder.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path, Bench())
    assert make(tmp_path, Bench()).made == names()


def test_two_sweeps_do_not_share_a_directory(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "sweep"),
        pytest.raises(UsageError, match="another sweep works in"),
        locked(tmp_path, "sweep"),
    ):
        pass
    with locked(tmp_path, "sweep"):
        pass


def test_the_table_is_made_of_the_run_directories_alone(tmp_path: Path) -> None:
    make(tmp_path, Bench({names()[5]: "gone"}))
    written = (tmp_path / "cells.csv").read_text()
    (tmp_path / "cells.csv").unlink()
    (tmp_path / "sweep.json").unlink()
    write_table(tmp_path)
    assert (tmp_path / "cells.csv").read_text() == written
    rows = list(csv.DictReader(written.splitlines()))
    assert list(rows[0])[:3] == ["target", "zipf", "users"]
    assert [row["run"] for row in rows] == [f"cells/{name}" for name in names()]
    assert [row["ttft_p50_ms"] for row in rows[:2]] == ["101", "102"]
    assert rows[0]["hit_rate"] == "0.25"
    assert rows[0]["ttft_p95_ms"] == rows[0]["e2e_p50_ms"] == ""
    assert (rows[0]["prompt_tokens"], rows[0]["usable_tokens"]) == ("900", "2560")
    assert (rows[5]["exit_code"], rows[5]["valid"], rows[5]["requests"]) == ("3", "false", "")


@pytest.mark.parametrize(
    ("count", "told"),
    [(19, (100.0, None, None)), (20, (100.0, 300.0, None)), (100, (100.0, 300.0, 400.0))],
)
def test_a_percentile_that_no_value_lies_beyond_is_not_told(
    tmp_path: Path, count: int, told: tuple[float | None, ...]
) -> None:
    metric = {"count": count, "mean": 150.0, "p50": 100.0, "p95": 300.0, "p99": 400.0}
    found = figures_of({}, {"metrics": {"ttft_ms": metric}}, tmp_path)
    assert tuple(found[f"ttft_{each}_ms"] for each in ("p50", "p95", "p99")) == told


def test_cells_as_values(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    cell = read_cells(tmp_path)[0]
    assert cell.figures.keys() == FIGURES.keys()
    assert cell.figures["ttft_p50_ms"] == FIRST_TTFT_MS + 1
    assert cell.options == {"users": "1"}
    assert cell.axes.keys() == {"target", "zipf"}
    assert (cell.started_unix_s, cell.cache_state, cell.seed) == (1001.0, "cold", cell.repeat - 1)


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    make(tmp_path, Bench())
    file = read_cells(tmp_path)[0].run / "summary.json"
    file.write_text('{"requests": "ten"}')
    with pytest.raises(UsageError, match=r"summary\.json"):
        read_cells(tmp_path)
    for name, wrong in (("position", "x"), ("axes", None), ("engine_start_s", "x")):
        note = file.with_name("cell.json")
        whole = json.loads(note.read_text())
        note.write_text(json.dumps({**whole, name: wrong}))
        with pytest.raises(UsageError, match=rf"cell\.json.*{name} is"):
            read_cells(tmp_path)
        note.write_text(json.dumps(whole))
    note.write_text("{}")
    with pytest.raises(UsageError, match=r"cell\.json.*cell_id is missing"):
        read_cells(tmp_path)
    note.unlink()
    assert file.parent not in [cell.run for cell in read_cells(tmp_path)], "it did not end"


def test_time_left_is_that_of_runs_and_starts(tmp_path: Path) -> None:
    steps = [step for stretch in order(SWEEP) for step in stretch.steps]
    make(tmp_path, Bench())
    made = read_made_cell(tmp_path / "cells" / steps[0].name)
    assert made is not None
    durations = Durations({step.cell.cell_id: 15.0 for step in steps})
    assert durations.left_s(steps[:2], starts=1) == 2 * (15 + 5) + 40
    durations.add(replace(made, wall_s=18.0, run_time_s=15.0, engine_start_s=30.0))
    other = next(s for s in steps if s.cell.cell_id != steps[0].cell.cell_id)
    assert durations.left_s([steps[0], other], starts=2) == 18 + 18 + 60
    durations.add(replace(made, wall_s=500.0, run_time_s=15.0, exit_code=3))
    assert durations.left_s([other], starts=0) == 18, "a run that died tells nothing"


def test_time_left_is_unknown_without_a_run_time_until_one_was_made(tmp_path: Path) -> None:
    steps = [step for stretch in order(SWEEP) for step in stretch.steps]
    make(tmp_path, Bench())
    made = read_made_cell(tmp_path / "cells" / steps[0].name)
    assert made is not None
    durations = Durations({})
    assert spoken(durations.left_s(steps, starts=0)) == "not known yet"
    durations.add(replace(made, wall_s=50.0))
    assert spoken(durations.left_s(steps, starts=0)) == "7 min"
