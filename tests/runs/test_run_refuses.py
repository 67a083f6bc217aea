"""Bad input: one clear line, exit code 2, before any load and with nothing written."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from run_process import KVSWARM, TIMEOUT_S, HostProcess, Run, host_process, run_swarm

from loadgen.cli.main import main

BROKEN = {
    "no module": ("import nosuchmodule", "broken.py, line 1: ModuleNotFoundError: No module named"),
    "no syntax": ("\ndef users(:", "broken.py, line 2: SyntaxError: invalid syntax"),
    "raises": ("import os\nos.environ['NOBODY']", "broken.py, line 2: KeyError: 'NOBODY'"),
    "leaves": ("import sys\nsys.exit(0)", "broken.py, line 2: SystemExit: 0"),
}
"""Locustfiles that cannot be imported."""
WRONG = {
    "wrong model": (("--model", "nonsense"), "choose from"),
    "negative zipf": (("--zipf", "-1"), "--zipf"),
    "not a span": (("--context-tokens", "5-2"), "--context-tokens"),
    "missing corpus": (("--corpus", "/nowhere/at/all"), "/nowhere/at/all"),
    "open loop without rate": (("--arrivals", "poisson"), "--rate"),
    "closed loop with rate": (("--rate", "5"), "rate"),
    "body": (("--extra-body", "{nonsense"), "JSON"),
    "tokenizer": (("--tokenizer", "/nowhere/tokenizer.json"), "--tokenizer"),
    "no users": (("-u", "0"), "0 users"),
    "header": (("--header", "nonsense"), "Name: value"),
    "key host": (("--key-host", "http://me:pw@x"), "--key-host: the host URL for x holds cred"),
    "endpoint": (
        ("--endpoint", "chat"),
        "404 for /v1/chat/completions: try --endpoint completions",
    ),
    "with workers": (("--processes", "2", "--zipf", "-1"), "--zipf"),
    "unwritable": (("--out", "/proc/kvswarm"), "/proc/kvswarm"),
}


@pytest.fixture(scope="module")
def url() -> object:
    with host_process() as host:
        yield host.url


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options(url: str, tmp_path: Path, name: str) -> None:
    options, said = WRONG[name]
    model = () if "--model" in options else ("--model", "normal")
    ran = run_swarm(url, tmp_path / "run", *model, "-t", "1s", *options)
    assert ran.code == 2, ran.output
    lines = [line for line in ran.output.splitlines() if line.startswith("kvswarm: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert "Traceback" not in ran.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "refused"),
        ("http://no-such-host.invalid", "no-such-host.invalid"),
        ("127.0.0.1:8000", "http://"),
    ],
)
def test_wrong_hosts(tmp_path: Path, url: str, said: str) -> None:
    ran = run_swarm(url, tmp_path / "run", "-t", "1s")
    assert ran.code == 2
    assert said in ran.output
    assert "Traceback" not in ran.output


def test_empty_corpus(url: str, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    ran = run_swarm(url, tmp_path / "run", "--model", "normal", "--corpus", tmp_path / "corpus")
    assert ran.code == 2
    assert str(tmp_path / "corpus") in ran.output


def test_a_run_is_never_overwritten(run: Run, host: HostProcess) -> None:
    first = run("--model", "normal", "-u", 1, "-t", "1s")
    sent = len(host.prompts())
    second = run("--model", "normal", "-u", 1, "-t", "1s")
    assert (first.code, second.code) == (0, 2)
    assert "already holds a run" in second.output
    assert len(host.prompts()) == sent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "--target"),
        (["run", "nofile.py", "--host", "http://127.0.0.1:9"], "unordered"),
        (["run", "--target", "nonsense"], "vllm-lmcache"),
        (["frobnicate"], "frobnicate"),
        (["serve", "nonsense"], "vllm-lmcache"),
        (["run", "--target", "vllm", "--kv-tokens", "much"], "--kv-tokens"),
        (["ui", "--host", "http://127.0.0.1:9", "--web-port", "99999"], "--web-port"),
        (["run", "--target", "vllm", "--zipf", "-1", "--out", "x"], "--zipf"),
        (["run", "--target", "vllm", "--model", "./nowhere"], "./nowhere"),
    ],
)
def test_wrong_commands(
    tmp_path: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSWARM_VIEW", "")
    assert main(arguments) == 2
    told = capfd.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


PLAIN = """
from locust import HttpUser, task

class Browser(HttpUser):
    @task
    def look(self):
        self.client.get("/")
"""


@pytest.mark.parametrize("text", [PLAIN, f"import kvswarm{PLAIN}"])
def test_a_locustfile_without_our_users_is_for_locust(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plain.py"
    file.write_text(text)
    ran = run_swarm("http://127.0.0.1:9", tmp_path / "run", "-t", "1s", file=str(file))
    assert ran.code == 2
    assert (
        ran.output == f"kvswarm: {file} has no users of kvswarm: run it with `locust -f {file}`\n"
    )


@pytest.mark.parametrize("load", [["--target", "vllm"], ["--host", "http://127.0.0.1:9"]])
def test_a_port_of_the_page_that_is_taken_is_told_before_an_engine_starts(
    load: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["ui", *load, "--web-port", str(port)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"127.0.0.1:{port}" in line
    assert "--web-port" in line


def test_plain_locust_works_too(host: HostProcess, tmp_path: Path) -> None:
    import locustfiles

    file = Path(str(locustfiles.__file__)).with_name("unordered.py")
    command = [sys.executable, "-m", "locust", "-f", str(file), "--headless", "--host", host.url]
    command += ["--model", "normal", "-u", "2", "-r", "2", "-t", "2s", "--out", str(tmp_path / "r")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "TTFT (ms)" in done.stdout + done.stderr
    assert (tmp_path / "r" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, ("run",)) for name in BROKEN),
        *(("no module", more) for more in (("ui",), ("run", "--worker"))),
    ],
)
def test_a_broken_locustfile_is_one_line(name: str, more: tuple[str, ...], tmp_path: Path) -> None:
    text, told = BROKEN[name]
    (tmp_path / "broken.py").write_text(text)
    is_refused(told, more[0], str(tmp_path / "broken.py"), *more[1:])


@pytest.mark.parametrize(
    ("name", "mend"), [("label", "did you mean labels?"), ("xyz", "see --help")]
)
def test_a_default_of_no_option_is_one_line(name: str, mend: str, tmp_path: Path) -> None:
    users = "from kvswarm import set_defaults\nfrom locustfiles.unordered import UnorderedUser\n"
    (tmp_path / "users.py").write_text(f"{users}set_defaults({name}='rag')\n")
    told = f"set_defaults names no option '{name}': {mend}"
    is_refused(told, "run", str(tmp_path / "users.py"))


@pytest.mark.parametrize("more", [("run",), ("ui",), ("run", "--worker"), ("run", "--processes=2")])
def test_an_unknown_user_class_is_one_line(more: tuple[str, ...]) -> None:
    is_refused("no user class 'NoSuchUser' in", more[0], "unordered", *more[1:], "NoSuchUser")


@pytest.mark.parametrize(
    ("flag", "name", "reason"),
    [
        *((flag, ".", "Is a directory") for flag in ("--html", "--json-file", "--logfile")),
        *((flag, "/dev/null/x", "Not a directory") for flag in ("--html", "--csv", "--logfile")),
        ("--json-file", "/proc/x", "No such file or directory"),
    ],
)
def test_a_file_of_locust_that_cannot_be_written_is_one_line(
    flag: str, name: str, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "unordered", "--host", "http://127.0.0.1:9", flag, name]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert f"cannot be written ({reason})" in line


def test_a_run_time_without_an_end_is_one_line() -> None:
    is_refused("is no run time: give 20, 20s, 3m or 1h20m", "run", "unordered", "-t", "0s")


def test_wrong_use_that_locust_finds_is_wrong_use() -> None:
    is_refused("Invalid --processes count -3", "run", "unordered", "--processes=-3")


def is_refused(told: str, *words: str) -> None:
    host = () if "--worker" in words else ("--host", "http://127.0.0.1:9", "--model", "m")
    done = subprocess.run(
        [*KVSWARM, *words, *host], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
