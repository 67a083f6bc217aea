"""`kvswarm sweep` as typed, against a host: made, killed half-way, made to the end."""

import csv
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from run_process import KVSWARM, TIMEOUT_S, host_process, wait_until

from loadgen.cli.main import main

SWEEP = """
name = "small"
seed = 3
[options]
host = "HOST"
model = "slow"
tokenizer = ""
users = 2
spawn-rate = 2
run-time = "1s"
drain = 0
max-lag-ms = 60000
[axes]
contexts = [2, 3]
output-tokens = [1, 2]
"""
WRONG = {
    "a value of Locust's": ('users = "many"', "[options] users = many: "),
    "an option nobody has": ("zip = 1", "[options] zip: is no option of kvswarm run: did you mean"),
    "half an option": ("run-ti = 3", "[options] run-ti: is no option"),
    "no end": ("", "it would never end: give run-time"),
    "no run": ('run-time = "1s"\nlist = true', "[options] list = true: no run would come of it"),
    "a target besides": ('target = "vllm"', "give either --host URL or --target NAME"),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with host_process() as host:
        yield host.url


def command(folder: Path, url: str, *more: str) -> list[str]:
    (folder / "sweep.toml").write_text(SWEEP.replace("HOST", url))
    return [*KVSWARM, "sweep", str(folder / "sweep.toml"), "--out", str(folder / "out"), *more]


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "cells.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", WRONG)
def test_what_a_run_would_refuse_is_found_before_anything_is_made(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option, said = WRONG[name]
    file = tmp_path / "sweep.toml"
    file.write_text(f'name = "x"\n[options]\nhost = "http://127.0.0.1:9"\n{option}\n')
    assert main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kvswarm: {file}")
    assert said in line
    assert not (tmp_path / "out").exists()


SHAPED = """
name = "shaped"
locustfile = "FILE"
[options]
host = "http://127.0.0.1:9"
"""
LOAD_SHAPE = Path(__file__).parents[2] / "locustfiles" / "examples" / "load_shape.py"
HEARING = "class Morning(LoadTestShape):\n    use_common_options = True\n"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('run-time = "1s"', ""),
        ("spawn-rate = 2", "[options] spawn-rate = 2: --spawn-rate means nothing to load shape"),
        ("[axes]\nusers = [2, 4]", "[axes] users = 2: --users means nothing to load shape Morning"),
        ("[axes]\nzipf = [0, 1]", ""),
    ],
)
def test_a_load_shape_takes_the_place_of_users(
    tmp_path: Path, more: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "sweep.toml", str(tmp_path / "out")
    file.write_text(SHAPED.replace("FILE", str(LOAD_SHAPE)) + more)
    assert main(["sweep", str(file), "--out", out, "--dry-run"]) == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_a_load_shape_that_reads_users_and_times_may_have_them(tmp_path: Path) -> None:
    shape, file = tmp_path / "hearing.py", tmp_path / "sweep.toml"
    text = LOAD_SHAPE.read_text()
    shape.write_text(text.replace("class Morning(LoadTestShape):\n", HEARING))
    file.write_text(SHAPED.replace("FILE", str(shape)) + 'run-time = "1s"\nusers = 2\n')
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--dry-run"]) == 0


def test_a_dry_run_makes_nothing(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path, url, "--dry-run")[len(KVSWARM) :]) == 0
    said = capsys.readouterr().out
    assert "4 cells, 4 runs, engine starts: 0; time left: 24 s" in said
    assert said.count("repeat 1") == 4
    assert list(tmp_path.iterdir()) == [tmp_path / "sweep.toml"]


def test_killed_and_stopped_it_goes_on_to_the_same_table(url: str, tmp_path: Path) -> None:
    stop(tmp_path, url, signal.SIGKILL, finished=0)
    stop(tmp_path, url, signal.SIGINT, finished=1)
    done = run(command(tmp_path, url))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("did not come to its end") == 1
    assert "[4/4]" in done.stderr
    assert f"Page: {tmp_path / 'out' / 'report.html'}" in done.stdout
    assert 'id="over-contexts"' in (tmp_path / "out" / "report.html").read_text()

    made = rows(tmp_path)
    cells = {(row["contexts"], row["output-tokens"]) for row in made}
    assert cells == {("2", "1"), ("2", "2"), ("3", "1"), ("3", "2")}
    assert [row["position"] for row in made] == ["1", "2", "3", "4"]
    order = json.loads((tmp_path / "out" / "sweep.json").read_text())["order"]
    assert [Path(row["run"]).name for row in made] == order[0]
    for row in made:
        assert (row["exit_code"], row["valid"], row["cache_state"]) == ("0", "true", "unknown")
        directory = tmp_path / "out" / row["run"]
        requests = (directory / "requests.csv").read_text().splitlines()[1:]
        assert len(requests) == int(row["requests"]) > 0
        description = json.loads((directory / "run.json").read_text())
        assert description["options"]["contexts"] == int(row["contexts"])
        assert description["command_line"][:2] == ["kvswarm", "run"]
    assert len(list((tmp_path / "out" / "aside").iterdir())) == 2


def stop(folder: Path, url: str, number: signal.Signals, finished: int) -> None:
    """Begin or continue; end it by the signal during the run after `finished` are there."""
    process = subprocess.Popen(
        command(folder, url), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        cells = folder / "out" / "cells"
        wait_until(lambda: len(list(cells.glob("*/run.json"))) > finished)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, said = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert not psutil.wait_procs(family, timeout=20)[1]
    assert len(list(cells.glob("*/cell.json"))) == finished
    if number == signal.SIGINT:
        assert len(rows(folder)) == finished
        assert process.returncode == 128 + number
        assert (
            f"continue with `kvswarm sweep {folder / 'sweep.toml'} --out {folder / 'out'}`" in said
        )
        assert "Traceback" not in said
