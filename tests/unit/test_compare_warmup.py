"""What comparisons leave out at the start of runs, and what they say of runs that never settled."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_runs import write_requests, write_run

from loadgen.cli.main import main
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import common_warmup_s, read_run
from loadgen.compare.series import Values
from loadgen.runs.recorded import RecordedRun

LOCUST = Path(__file__).parents[1] / "data" / "locust"
RNG = np.random.default_rng(0)
COLD_S = 10
COLD = [900.0] * (10 * COLD_S)
"""Ten requests a second."""


def steady(mean_ms: float) -> list[float]:
    return list(mean_ms * np.exp(0.05 * RNG.standard_normal(300)))


def options(**more: Any) -> dict[str, Any]:
    return {"options": {"contexts": 6, "zipf": 0.0, **more}}


def mean_ttft_ms(run: ComparedRun) -> float:
    series = run.series["ttft_ms"]
    assert isinstance(series, Values)
    return float(series.value.mean())


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The base was cold at first, and only the new one was told to leave that out."""
    base = write_run(tmp_path / "base", [*COLD, *steady(100)], **options())
    new = write_run(tmp_path / "new", [*COLD, *steady(200)], **options(warmup=COLD_S))
    return base, new


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))


def compare(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["compare", "--metrics", "ttft_ms.mean", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_is_read_without_its_own_warmup(pair: tuple[Path, Path]) -> None:
    base, new = pair
    assert mean_ttft_ms(read_run(new)) == pytest.approx(200, rel=0.02)
    assert mean_ttft_ms(read_run(new, warmup_s=0.0)) == pytest.approx(375, rel=0.02)
    assert mean_ttft_ms(read_run(base)) == pytest.approx(300, rel=0.02)
    assert read_run(new).samples(parse_statistic("errors")) == 300
    assert common_warmup_s([base, new]) == COLD_S
    assert common_warmup_s([base, base / "requests.csv"]) == 0


@pytest.mark.parametrize(
    "warmup", [10**400, "soon", -1, None], ids=["huge", "word", "below", "none"]
)
def test_a_warmup_that_is_no_time_is_none(warmup: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [10.0], **options(warmup=warmup))
    assert RecordedRun(run).own_warmup_s == 0


def test_both_sides_lose_the_longest_warmup_alike(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for sides, change in ((pair, 1.0), (pair[::-1], -0.5)):
        code, out, _ = compare(capsys, *sides, "--format", "json")
        found = json.loads(out)
        assert code == 0
        assert found["metrics"][0]["change"]["estimate"] == pytest.approx(change, rel=0.05)
        told = [each for each in found["notes"] if f"the first {COLD_S} s are left out" in each]
        assert len(told) == 2


def test_the_option_wins_over_what_the_runs_were_told(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ["--gate", "ttft_ms.mean<=+60%"]
    assert compare(capsys, *pair, *limit)[0] == 1, "200 against 100 ms"
    code, out, _ = compare(capsys, *pair, *limit, "--warmup", 0)
    assert code == 4, "375 against 300 ms, of which a warm-up hides what may lie beyond"
    assert "too few data" in out
    _, out, _ = compare(capsys, *pair, "--warmup", 12.5)
    assert "the first 12.5 s are left out" in out


def test_a_warmup_that_is_found_can_be_left_out_of_both_sides(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    base, _ = pair
    new = write_run(base.parent / "hot", steady(200), **options())
    _, out, _ = compare(capsys, base, new, "--warmup", "auto", "--format", "json")
    found = json.loads(out)
    assert found["metrics"][0]["base"] == pytest.approx(100, rel=0.02)
    left_out = [note for note in found["notes"] if "are left out as its warm-up" in note]
    assert len(left_out) == 2
    assert len({note.partition(": ")[2] for note in left_out}) == 1
    assert found["metrics"][0]["samples"]["base"] <= 300
    _, out, _ = compare(capsys, new, new.parent / "new", "--warmup", "auto")
    assert "the first 10 s are left out" in out, "that of the run is longer than none"


def test_a_run_says_what_it_left_out_itself(pair: tuple[Path, Path]) -> None:
    _, new = pair
    (new / "summary.json").write_text('{"warmup": {"seconds": 12.5, "given": false}}')
    assert RecordedRun(new).own_warmup_s == 12.5
    (new / "summary.json").write_text('{"warmup": {"seconds": 0.0, "given": false}}')
    assert RecordedRun(new).own_warmup_s == 0
    (new / "summary.json").unlink()
    assert RecordedRun(new).own_warmup_s == COLD_S
    (new / "run.json").write_text('{"options": {"warmup": "auto"}}')
    assert RecordedRun(new).own_warmup_s == 0, "it did not come to its end"


def test_batches_of_the_warmup_are_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steady(100), **options(warmup=5))
    (run / "batches.csv").write_text(
        "scheduled_s,sent_s,last_reply_s,makespan_s\n4.9,4.9,9,4.1\n5,5,6,1\n6,6,8,2\n"
    )
    series = read_run(run).series["makespan_s"]
    assert isinstance(series, Values)
    assert list(series.value) == [1.0, 2.0]


@pytest.mark.parametrize("seconds", ["x", "-1", "nan", "inf"])
def test_a_warmup_that_is_none_is_refused(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], seconds: str
) -> None:
    code, _, err = compare(capsys, *pair, f"--warmup={seconds}")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--warmup {seconds!r} is no number of seconds" in err


def test_locusts_files_cannot_leave_a_warmup_out(capsys: pytest.CaptureFixture[str]) -> None:
    files = [LOCUST / f"{side}_stats_history.csv" for side in ("base", "new")]
    code = main(["compare", *map(str, files), "--warmup", "5"])
    assert code == 2
    assert "does not say when requests were due" in capsys.readouterr().err


def remarks(path: Path) -> str:
    return "; ".join(read_run(path).remarks)


def test_a_run_that_never_settled_says_so(tmp_path: Path) -> None:
    growing = [value * (1 + at / 100) for at, value in enumerate(steady(100))]
    assert "it never settled" in remarks(write_run(tmp_path / "a", growing, **options()))
    ramp = options(arrivals="poisson", rate="1-9:60,9")
    assert "settled" not in remarks(write_run(tmp_path / "b", growing, **ramp))
    assert "settled" not in remarks(write_run(tmp_path / "c", steady(100), **options()))
    write_requests(tmp_path / "bare.csv", growing)
    assert "it never settled" in remarks(tmp_path / "bare.csv")


def test_of_many_requests_those_are_looked_at_that_the_run_looked_at(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).standard_normal(24_000)
    warm = list(100 * np.exp(0.05 * noise))
    run = write_run(tmp_path / "run", [900.0] * 3000 + warm, **options())
    file = run / "requests.csv"
    head, *rows = file.read_text().splitlines(keepends=True)
    random.Random(0).shuffle(rows)
    file.write_text("".join((head, *rows)))
    own, theirs = RecordedRun(run).steady_state, read_run(run)
    assert own is not None
    assert own.early > 0
    assert own.early % 2 == 0
    assert any(f"{own.early} requests of its first {own.from_s:.1f} s" in r for r in theirs.remarks)


def test_a_warmup_that_counts_is_told(pair: tuple[Path, Path]) -> None:
    base, new = pair
    found = re.search(r"(\d+) requests of its first (\S+) s are a warm-up that", remarks(base))
    assert found is not None
    assert 100 <= int(found[1]) <= 150
    assert "moves the mean TTFT by +2" in remarks(base)
    assert f"(--warmup {found[2]} leaves them out)" in remarks(base)
    assert "moves the mean" not in remarks(new)
