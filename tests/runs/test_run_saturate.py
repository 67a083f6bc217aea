"""`kvswarm saturate` as typed, against a host that answers one request after the other."""

import csv
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from host import SERVICE_S
from run_process import KVSWARM, TIMEOUT_S, host_process, wait_until

from loadgen.cli.main import main

CAPACITY_PER_S = 1 / SERVICE_S
WRONG = {
    "no objective": ([], "no objective: give --slo"),
    "an objective of nothing": (["--slo", "fast"], "--slo: 'fast' is no limit"),
    "its own option": (["--slo", "ttft_ms.p95<=9", "--rate", "3"], "--rate is not for a search"),
    "an end of its own": (["--slo", "ttft_ms.p95<=9", "--batches", "3"], "--batches 3 is not for"),
    "users twice": (["--slo", "ttft_ms.p95<=9", "--by", "users", "-u5"], "-u is not for a search"),
    "an end below the start": (["--slo", "ttft_ms.p95<=9", "--to", "0.5"], "--to 0.5"),
    "an option nobody has": (["--slo", "ttft_ms.p95<=9", "--contexs", "3"], "--contexs"),
    "a host that is none": (["--slo", "ttft_ms.p95<=9"], "refused the connection"),
}

EXAMPLES = Path(__file__).parents[2] / "locustfiles" / "examples"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with host_process() as host:
        yield host.url


def command(url: str, out: Path, *more: str) -> list[str]:
    fixed = ["--model", "queued", "--tokenizer=", "--output-tokens", "2", "--max-lag-ms", "60000"]
    search = ["--slo", "ttft_ms.p50<=1000", "--arrivals", "constant", "--trial", "6s"]
    return [*KVSWARM, "saturate", "--host", url, "--out", str(out), *fixed, *search, *more]


def rows(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_line(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, said = WRONG[name]
    out = ["--host", "http://127.0.0.1:9", "--out", str(tmp_path / "out")]
    assert main(["saturate", *out, *arguments]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("kvswarm: ")
    assert said in line


@pytest.mark.parametrize(
    ("file", "variables", "by", "said"),
    [
        (str(EXAMPLES / "open_loop.py"), {}, "users", "--arrivals poisson is not for --by users"),
        (str(EXAMPLES / "load_shape.py"), {}, "rate", "load shape Morning is not for a search"),
        (str(EXAMPLES / "load_shape.py"), {}, "users", "load shape Morning is not for a search"),
        ("unordered", {"ARRIVALS": "constant", "RATE": "5"}, "users", "--arrivals constant is not"),
        ("unordered", {"BATCHES": "3"}, "rate", "--batches 3 is not for a search"),
        ("unordered", {"TRACE": "TRACE"}, "rate", "trace.jsonl is not for a search"),
    ],
)
def test_what_no_search_can_have_is_refused_whoever_asks_for_it(
    file: str,
    variables: dict[str, str],
    by: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n')
    for name, value in variables.items():
        monkeypatch.setenv(f"LOCUST_{name}", value.replace("TRACE", str(trace)))
    words = ["--host", "http://127.0.0.1:9", "--out", str(tmp_path / "out")]
    words += ["--slo", "ttft_ms.p95<=9", "--by", by]
    assert main(["saturate", file, *words]) == 2
    assert said in capfd.readouterr().err.splitlines()[-1]


def test_the_capacity_is_found_and_the_search_goes_on_where_it_was_stopped(
    url: str, tmp_path: Path
) -> None:
    """The host's pace is its sleep, so a busy machine can only make it slower: half of a trial's
    requests may be late, and less than the capacity may be found."""
    out = tmp_path / "out"
    # A load near the capacity, or beside a pause of the machine, may need a second trial.
    search = command(url, out, "--from", "5", "--to", "40", "--max-trials", "5", "--warm-up=.5s")
    stop_after_first(search, out)
    done = subprocess.run(search, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 trials are there" in done.stderr
    assert "highest rate found to meet it: " in done.stdout
    found = json.loads((out / "saturate.json").read_text())
    result = found["result"]
    assert CAPACITY_PER_S / 4 <= result["met"] <= CAPACITY_PER_S * 2
    assert result["met"] < result["not_met"] <= 2 * result["met"]
    assert "--max-trials is used up" in done.stdout
    picture = (out / "saturation.svg").read_text()
    for label in ("objective: ttft_ms.p50&lt;=1000", f"met at {result['met']:g}/s", "p50"):
        assert label in picture
        assert label in (out / "report.html").read_text()

    made = rows(out)
    verdicts = {float(row["load"]): row["verdict"] for row in made}
    assert verdicts[result["met"]] == "met"
    assert verdicts[result["not_met"]] != "met"
    for row in made:
        run = json.loads((out / row["run"] / "run.json").read_text())
        assert float(run["options"]["rate"]) == float(row["load"])
        assert (out / row["run"] / "summary.json").is_file()


def stop_after_first(search: list[str], out: Path) -> None:
    """Ctrl-C in the second trial: the first is kept and told."""
    process = subprocess.Popen(
        search, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: len(list((out / "trials").glob("*/run.json"))) > 1)
        process.send_signal(signal.SIGINT)
        said, trouble = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT, trouble
    assert " at 5/s, " in said or "at least 5/s, the highest that was tried" in said
    assert len(rows(out)) == 1
