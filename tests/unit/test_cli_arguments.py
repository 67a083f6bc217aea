"""The part of the command line that is not Locust's."""

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from loadgen.cli import demo
from loadgen.cli.ask import _parse
from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.launch.arguments import (
    RunArguments,
    add_target_options,
    parse_run,
    run_again,
    run_parser,
)
from loadgen.launch.target_run import choose_targets
from loadgen.runs.machine import without_secrets
from loadgen.swarm.options.flags import add_options
from loadgen.targets.context_scheduler import ContextSchedulerSettings

SCHEDULER = (
    *("--policy", "lpm", "--key", "label", "--quantum", "8", "--max-overtakes", "0"),
    *("--max-wait-s", "1.5", "--window", "16", "--min-kv-usage", "0.5"),
)


def test_options_of_the_scheduler_are_ours_and_the_rest_is_locusts() -> None:
    run = parse_run("run", ["batched", "--target", "vllm-context", *SCHEDULER, "-u", "3"])
    assert run.rest == ("-u", "3")
    assert run.target_arguments.context_scheduler == ContextSchedulerSettings(
        "lpm", "label", 8, 0, 1.5, 16, 0.5
    )


def test_the_trained_model_answers_unless_another_is_named() -> None:
    asked = _parse(["What is a block?"])
    assert (asked.target_arguments.model, asked.endpoint) == ("trained", "chat")
    for other in (["--size", "tiny"], ["--model", "a/folder"], ["--host", "http://h"]):
        asked = _parse(["What is a block?", *other])
        assert asked.target_arguments.model != "trained"
        assert asked.endpoint == "completions"


def test_the_demo_says_that_its_model_has_random_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[RunArguments] = []
    monkeypatch.setattr(demo, "run_supervised", lambda name, run: ran.append(run) or 0)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert ran[0].target_arguments.model is None, "the fast one"
    assert "random weights: its times mean something, its words do not" in capsys.readouterr().out
    assert main(["demo", "--out", str(tmp_path), "--model", "a/folder"]) == 0
    assert "The model is a/folder." in capsys.readouterr().out


def test_the_demo_names_the_command_that_tells_how_sure_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: object) -> int:
        for name in demo.TARGETS:
            (tmp_path / name).mkdir()
            (tmp_path / name / "summary.json").write_text("{}")
        return 0

    monkeypatch.setattr(demo, "run_supervised", run)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    runs = [str(tmp_path / name) for name in ("vllm", "vllm-context")]
    assert shlex.join(["kvswarm", "compare", *runs]) in capsys.readouterr().out


def test_only_what_was_given_is_passed_on() -> None:
    run = parse_run("run", ["--target", "vllm-context", "--quantum", "8"])
    settings = run.target_arguments.context_scheduler
    assert json.loads(settings.json) == {"quantum": 8, "strict": True}
    assert settings.options == ("--quantum",)


class Collector:
    def __init__(self) -> None:
        self.flags: set[str] = set()

    def add_argument(self, *flags: str, **_: object) -> None:
        self.flags.update(flags)


@pytest.mark.parametrize("called", ["kvswarm", ".venv/bin/kvswarm", "/x/kvswarm/__main__.py"])
def test_a_recorded_run_is_made_again_on_another_engine(called: str) -> None:
    words = "run batched --target=vllm-lmcache-context --l1-gb 2 -u 4 -t 9s --model trained"
    words += " --kv-tokens 99 --out runs/a --quantum 3 --engine-arg=--max-num-seqs=4 --zipf 1"
    again = run_again([called, *words.split()], "vllm", 512)
    kept = "--model=trained --engine-arg=--max-num-seqs=4"
    plain = f"kvswarm run batched {kept} -u 4 -t 9s --zipf 1 --target vllm --kv-tokens 512"
    assert again == plain.split()
    ordered = run_again([called, *words.split()], "vllm-context", 512)
    assert ordered is not None
    assert "--quantum=3" in ordered
    recorded = without_secrets([called, *words.split(), "--key", "prefix"])
    assert "--key=prefix" in (run_again(recorded, "vllm-context", 512) or [])
    assert parse_run("run", ordered[2:]).target_arguments.context_scheduler.quantum == 3


@pytest.mark.parametrize("words", ["kvswarm demo", "locust -f x.py", "kvswarm", ""])
def test_what_was_no_run_is_not_made_again(words: str) -> None:
    assert run_again(words.split(), "vllm", 512) is None


def test_no_option_of_ours_hides_one_of_the_swarm() -> None:
    swarm = Collector()
    add_options(swarm)
    ours = {flag for action in run_parser("run")._actions for flag in action.option_strings}
    assert ours & swarm.flags == {"--model", "--out"}
    names = (field.name for field in fields(ContextSchedulerSettings))
    assert {f"--{name.replace('_', '-')}" for name in names} <= ours


def test_several_targets_keep_their_order() -> None:
    run = parse_run("run", ["--target", "vllm,vllm-context"])
    assert run.targets == ("vllm", "vllm-context")
    assert run.out.name.endswith("-vllm+vllm-context")


WRONG = {
    "neither": ([], "--host URL or --target NAME"),
    "both": (["--host", "http://h", "--target", "vllm"], "--host URL or --target NAME"),
    "twice the same": (["--target", "vllm,vllm-context,vllm"], "names vllm twice"),
    "an empty name": (["--target", "vllm,"], "empty name"),
    "a worker's own target": (["--target", "vllm", "--worker"], "give --target to the master"),
    "a scheduler option for a host": (["--host", "http://h", "--key", "label"], "--key is for"),
    "a worker's engine": (["--worker", "--kv-tokens", "64"], "--kv-tokens is for an engine"),
    "an unknown policy": (["--target", "vllm-context", "--policy", "best"], "--policy"),
    "no quantum": (["--target", "vllm-context", "--quantum", "0"], "--quantum 0"),
    "negative overtakes": (["--target", "vllm-context", "--max-overtakes", "-1"], "from 0 on"),
    "endless waiting": (["--target", "vllm-context", "--max-wait-s", "inf"], "--max-wait-s inf"),
    "half a group": (["--target", "vllm-context", "--window", "0.5"], "--window"),
    "more than all": (["--target", "vllm-context", "--min-kv-usage", "1.1"], "from 0 to 1"),
    "one file for two": (["--target", "vllm,vllm-context", "--html=a.html"], "--html would be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line(name: str) -> None:
    arguments, said = WRONG[name]
    with pytest.raises(UsageError) as error:
        parse_run("run", arguments)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_worker_needs_no_host() -> None:
    run = parse_run("run", ["unordered", "--worker", "--master-host", "10.0.0.7"])
    assert (run.targets, run.rest) == ((), ("--worker", "--master-host", "10.0.0.7"))
    assert run.host is not None


def test_one_target_keeps_locusts_files() -> None:
    assert parse_run("run", ["--target", "vllm", "--html", "a.html"]).rest == ("--html", "a.html")


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_ui_and_serve_take_one_target(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["--target", "vllm,vllm-context"] if command == "ui" else ["vllm,vllm-context"]
    assert main([command, *target]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`kvswarm {command}`" in line
    assert "one target" in line


def test_options_of_the_scheduler_need_a_target_that_takes_them() -> None:
    arguments = parse_run("run", ["--target", "vllm", "--quantum", "8"]).target_arguments
    with pytest.raises(UsageError, match="--quantum means nothing to target vllm: choose vllm-con"):
        choose_targets(["vllm"], arguments)
    specs = choose_targets(["vllm", "vllm-context"], arguments)
    assert [spec.name for spec in specs] == ["vllm", "vllm-context"]


@pytest.mark.parametrize("target", ["vllm", "vllm-tiered", "vllm-lmcache-files"])
def test_the_size_of_nodes_is_for_targets_with_nodes(target: str) -> None:
    arguments = parse_run("run", ["--target", target, "--l2-gb", "1"]).target_arguments
    said = f"--l2-gb means nothing to target {target}: choose vllm-lmcache-codec or"
    with pytest.raises(UsageError, match=said):
        choose_targets([target], arguments)
    assert choose_targets([target, "vllm-offload-regional"], arguments)


def test_own_targets_take_them_too(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('[targets.mine]\nextends = "vllm-context"\nargs = ["--max-num-seqs", "4"]')
    given = ["--targets", str(file), "--target", "mine", "--policy", "fcfs"]
    arguments = parse_run("run", given).target_arguments
    assert [spec.name for spec in choose_targets(["mine"], arguments)] == ["mine"]


FOR_ENGINES = {
    "--targets": "x.toml",
    "--size": "tiny",
    "--kv-tokens": "4096",
    "--l1-gb": "1",
    "--l2-dir": "/tmp",
    "--l2-gb": "1",
    "--kv-codec": "int8",
    "--engine-arg": "--x",
    "--start-timeout": "600",
    "--replicas": "2",
    "--router": "random",
    "--policy": "lpm",
}


def test_every_option_of_an_engine_is_among_those_refused_for_a_host() -> None:
    parser = argparse.ArgumentParser()
    add_target_options(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert flags - {"-h", "--help", "--model"} >= set(FOR_ENGINES)
    for flag in flags - {"-h", "--help", "--model", *FOR_ENGINES}:
        assert flag in SCHEDULER


@pytest.mark.parametrize("flag", FOR_ENGINES)
@pytest.mark.parametrize("command", ["run", "ui", "saturate", "ask"])
def test_options_of_an_engine_are_refused_for_a_host(
    flag: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "--host", "http://127.0.0.1:9", f"{flag}={FOR_ENGINES[flag]}"]
    words += {
        "saturate": ["--slo", "ttft_ms.p95<=5"],
        "ask": ["what?", "--rag-url", "http://r"],
    }.get(command, [])
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{flag} is for an engine that kvswarm starts" in line


def test_a_service_of_ours_beside_a_host_may_take_its_time() -> None:
    parsed = _parse(["--host", "http://h", "--start-timeout", "5", "what?"])
    assert parsed.target_arguments.start_timeout_s == 5.0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "--target", "vllm", "--kv_tokens", "64"], "--kv-tokens"),
        (["run", "--host", "http://h", "--KvTokens=64"], "--kv-tokens"),
        (["run", "--host", "http://h", "--conntexts", "3"], "--contexts"),
        (["saturate", "--host", "http://h", "--slo", "ttft_ms.p95<=5", "--max_trials=3"], "max-t"),
        (["compare", "a", "b", "--GATE", "x"], "--gate"),
        (["serve", "vllm", "--kv_tokens", "64"], "--kv-tokens"),
        (["sweep", "--dryrun"], "--dry-run"),
        (["rag", "label", "--pth", "x", "what?"], "--path"),
        (["comapre", "a", "b"], "kvswarm compare"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "run":  # Locust is not for this process
        command = [sys.executable, "-m", "loadgen.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        code, said = done.returncode, done.stderr
    else:
        code, said = main(words), capsys.readouterr().err
    assert code == 2, said
    (line,) = said.splitlines()
    assert "did you mean" in line
    assert meant in line.partition("did you mean")[2]


@pytest.mark.parametrize("given", ["nan", "inf", "0", "-1"])
@pytest.mark.parametrize("command", [["run", "--target", "vllm"], ["serve", "vllm"], ["demo"]])
def test_a_start_that_nothing_would_end_is_refused(
    command: list[str], given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, f"--start-timeout={given}"]) == 2
    assert f"--start-timeout {given}: give seconds above 0" in capsys.readouterr().err
