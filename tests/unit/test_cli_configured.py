"""Which host or target to load, and where to keep it, from Locust's files and environment."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.cli.saturate import parse_search
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, parse_run
from loadgen.launch.search import trial_words
from loadgen.saturate.folder import SearchFolder
from loadgen.saturate.search_state import TrialStep

HOST, OTHER = "http://127.0.0.1:9", "http://127.0.0.1:8"
CONF, PYPROJECT = "locust.conf", "pyproject.toml"
SLO = ["--slo", "ttft_ms.p95<=500"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", ["run", "ui"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        (CONF, f"# mine\nhost = {HOST}\nout: kept\nusers = 3\n"),
        (".locust.conf", f"host={HOST}\nout=kept\n"),
        (PYPROJECT, f'[tool.locust]\nhost = "{HOST}"\nout = "kept"\nusers = 3\n'),
        ("own.toml", f'[tool.locust]\nhost = "{HOST}"\nout = "kept"\n'),
    ],
)
def test_a_file_says_it(folder: Path, command: str, file: str, text: str) -> None:
    (folder / file).write_text(text)
    words = ["--config", file] if file.startswith("own") else []
    run = parse_run(command, ["batched", *words, "-u", "3"])
    assert (run.file, run.host, run.out) == ("batched", HOST, Path("kept"))
    assert run.rest[-2:] == ("-u", "3")


def test_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCUST_TARGET", "vllm,vllm-context")
    monkeypatch.setenv("LOCUST_OUT", "kept")
    monkeypatch.setenv("LOCUST_KV_TOKENS", "4096")
    run = parse_run("run", [])
    assert (run.targets, run.out) == (("vllm", "vllm-context"), Path("kept"))
    assert run.target_arguments.kv_tokens == 4096


def test_the_stronger_word_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / CONF).write_text("target = vllm\nkv-tokens = 4096\nengine-arg = [--a, --b]\n")
    assert parse_run("run", []).target_arguments.engine_args == ("--a", "--b")
    assert parse_run("run", ["--kv-tokens", "64"]).target_arguments.kv_tokens == 64
    assert parse_run("run", ["--host", HOST]).targets == ()
    monkeypatch.setenv("LOCUST_HOST", OTHER)
    assert parse_run("run", []).host == OTHER
    run = parse_run("run", ["--target", "vllm-lmcache"])
    assert (run.host, run.targets) == (None, ("vllm-lmcache",))
    (folder / PYPROJECT).write_text("[tool.other]\nhost = 3\n")
    assert parse_run("run", []).host == OTHER


def test_a_worker_by_environment_loads_what_its_master_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCUST_MODE_WORKER", "true")
    assert parse_run("run", []).host is not None


def test_a_search_hears_it_too(folder: Path) -> None:
    (folder / CONF).write_text(f"host = {HOST}\nout = found\n")
    _, out = parse_search(SLO)
    assert out == Path("found")


def test_limits_that_are_given_one_by_one_are_all_kept(folder: Path) -> None:
    (folder / CONF).write_text(f"host = {HOST}\n")
    first, _ = parse_search([*SLO, "--slo", "errors<=3%"])
    assert str(first.objective) == f"{SLO[1]}, errors<=3%"


def test_a_search_hears_of_users_and_arrivals(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / CONF).write_text(f"host = {HOST}\n")
    assert {"--arrivals=poisson", "--users=0"} <= set(first_trial(SLO))
    monkeypatch.setenv("LOCUST_USERS", "64")
    monkeypatch.setenv("LOCUST_ARRIVALS", "constant")
    words = first_trial(SLO)
    assert "--arrivals=constant" in words
    assert users_in(words) == ["--users=64"]
    assert users_in(first_trial([*SLO, "-u", "8"])) == ["-u"]
    assert "--arrivals=gamma" in first_trial([*SLO, "--arrivals", "gamma"])
    (folder / CONF).write_text(f"host = {HOST}\nspawn-rate = 3\n")
    words = first_trial([*SLO, "--by", "users"])
    assert [word for word in words if word.startswith("--spawn")] == ["--spawn-rate=3"]
    monkeypatch.setenv("LOCUST_ARRIVALS", "closed")
    with pytest.raises(UsageError, match="--arrivals closed has no rate: give poisson"):
        first_trial(SLO)


@pytest.mark.parametrize(
    ("variable", "by", "said"),
    [("LOCUST_USERS", "rate", "--users=4"), ("LOCUST_SPAWN_RATE", "users", "--spawn-rate=4")],
)
def test_a_search_with_other_users_in_the_environment_is_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, variable: str, by: str, said: str
) -> None:
    words, kept = [*SLO, "--by", by, "--host", HOST], SearchFolder(folder / "out", HOST)
    first, _ = parse_search(words)
    kept.open(first)
    step = TrialStep(number=1, load=2.0, repeat=1, seed=0, seconds=30)
    kept.run(step).mkdir()
    kept.note(step)
    kept.check(first)
    monkeypatch.setenv(variable, "4")
    with pytest.raises(UsageError, match=rf"another search \(command was .*{said}"):
        kept.check(parse_search(words)[0])


def users_in(words: list[str]) -> list[str]:
    return [word for word in words if word.startswith(("--users", "-u"))]


def first_trial(words: list[str]) -> list[str]:
    plan, _ = parse_search(words)
    return trial_words(plan, TrialStep(number=1, load=2.0, repeat=1, seed=0, seconds=30))


def test_a_path_may_begin_at_home(folder: Path) -> None:
    assert parse_run("run", ["--host", HOST, "--out=~/x"]).out == folder / "x"
    paths = ["--targets=~/t.toml", "--l2-dir=~/l2"]
    engine = parse_run("run", ["--target", "vllm", *paths]).target_arguments
    assert (engine.catalog, engine.l2_dir) == (folder / "t.toml", folder / "l2")
    (folder / CONF).write_text(f"host = {HOST}\nout = ~/kept\n")
    assert parse_run("run", []).out == folder / "kept"
    assert parse_search(SLO)[1] == folder / "kept"
    assert parse_search([*SLO, "--out=~/x"])[1] == folder / "x"


def test_so_may_the_path_of_any_command(folder: Path) -> None:
    parser = CommandParser(prog="kvswarm")
    command = parser.add_subparsers().add_parser("some")
    command.add_argument_group("paths").add_argument("--page", type=Path)
    assert parser.parse_args(["some", "--page=~/p"]).page == folder / "p"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host = http://h\ntarget = vllm\n", "either --host URL or --target"),
        ("host = http://h\nkv-tokens = 4096\n", "--kv-tokens is for an engine"),
        ("target = vllm\nkv-tokens = much\n", "locust.conf: argument --kv-tokens"),
    ],
)
def test_a_mistake_in_a_file_is_told(folder: Path, text: str, said: str) -> None:
    (folder / CONF).write_text(text)
    with pytest.raises(UsageError, match=said):
        parse_run("run", [])


def test_a_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(UsageError, match="--config none cannot be read: No such file"):
        parse_run("run", ["--config", "none"])


@pytest.mark.parametrize("word", ["target = vllm", "contxts = 3"])
def test_locust_passes_over_what_is_ours_and_nothing_else(folder: Path, word: str) -> None:
    (folder / CONF).write_text(f"{word}\nkv-tokens = 4096\n")
    command = [sys.executable, "-m", "loadgen.cli.main", "run", "--host", HOST, "-t", "1s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert ("refused the connection" in done.stderr) is (word == "target = vllm"), done.stderr


@pytest.mark.parametrize("out", ["swept", "~/swept"])
def test_a_sweep_hears_it_too(folder: Path, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / CONF).write_text(f"host = {HOST}\nout = {out}\n")
    (folder / "swept").touch()
    text = 'name = "s"\n[options]\nrun-time = "1s"\n[axes]\ncontexts = [2]\n'
    (folder / "s.toml").write_text(text)
    assert main(["sweep", "s.toml", "--dry-run"]) == 2
    assert "swept" in capsys.readouterr().err
    assert main(["sweep", "s.toml", "--dry-run", "--out=~/swept"]) == 2
    (folder / "swept").unlink()
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert HOST in capsys.readouterr().out
