"""What a command prints, where it cannot be written, or nobody reads it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.cli import main
from loadgen.cli.simulate import FIGURES, _table

NO_SPACE = "kvswarm: cannot write to stdout: No space left on device: send the output elsewhere\n"
# A command that is told while it prints is ended by that; here it has printed and goes on.
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENDINGS = """
import sys
from loadgen.cli import main
from loadgen.errors import TargetError

def command(arguments):
    print("something")
    if arguments[0] == "dies":
        raise TargetError("the engine died")
    if arguments[0] == "interrupted":
        raise KeyboardInterrupt
    return int(arguments[0])

main._command = lambda name: command
sys.exit(main.main(["any", sys.argv[1]]))
"""


@pytest.mark.parametrize("arguments", [("targets",), ("--help",), ("compare", "--help"), ()])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...]) -> None:
    code, err = to_full_disk([sys.executable, "-m", "loadgen.cli.main", *arguments])
    assert (code, err) == (2 if arguments == () else 1, NO_SPACE)


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("0", 1, NO_SPACE),
        ("4", 4, NO_SPACE),
        ("dies", 3, "kvswarm: the engine died\n"),
        ("interrupted", 130, ""),
    ],
)
def test_what_went_wrong_before_the_output_is_told(ending: str, code: int, told: str) -> None:
    assert to_full_disk([sys.executable, "-c", ENDINGS, ending]) == (code, told)


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        ("0", 0, ""),
        ("4", 4, ""),
        ("dies", 3, "kvswarm: the engine died\n"),
        ("interrupted", 130, ""),
    ],
)
def test_a_reader_that_leaves_changes_no_exit_code(ending: str, code: int, told: str) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = subprocess.run(
            [sys.executable, "-c", ENDINGS, ending],
            stdout=reader.stdin,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=BUFFERED,
        )
    assert (done.returncode, done.stderr) == (code, told)


def test_what_stdout_cannot_encode_is_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.cli.main", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "kvswarm ask QUESTION\\u2026 " in done.stdout


def to_full_disk(command: list[str]) -> tuple[int, str]:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            env=BUFFERED,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("command", ["report", "curve", "noise", "compare"])
def test_a_path_that_the_system_cannot_take_is_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {"noise": 3, "compare": 2}.get(command, 1)
    assert main.main([command, "a" * 5000, "b", "c"][: 1 + runs]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "aaa… cannot be used (File name too long)" in err
    assert len(err) < 300


def test_any_other_fault_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise FileNotFoundError(2, "No such file or directory", "ours")

    monkeypatch.setattr(main, "_command", lambda name: fail)
    with pytest.raises(FileNotFoundError, match="ours"):
        main.main(["report"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "a\nb", "c"], "a b"),
        (["curve", "x" * 5_000], f"{'x' * 150}"),
        (["many words " * 500], "many words many words"),
        (["targets", "--targets", "/dev/zero"], "it is a device, and no file"),
        (["sweep", "/dev/zero"], "it is a device, and no file"),
        (["curve", "--plan", "unordered", "--tokenizer", "/dev/zero"], "it is a device"),
        *(
            (["curve", "--plan", "unordered", "--model", x], "no config.json")
            for x in ("é", "", "-1")
        ),
        (["run", "--host", "http://127.0.0.1:9", "--quantum", "7" * 5_000], "7…"),
    ],
)
def test_a_complaint_is_one_short_line_whatever_was_given(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert len(line) < 1_000


@pytest.mark.parametrize(("replies", "is_told"), [(19, False), (20, True)])
def test_a_simulated_p95_of_few_replies_is_not_told(replies: int, is_told: bool) -> None:
    told: Any = SimpleNamespace(
        intervals={}, figures=dict.fromkeys(FIGURES, 1.0), ttft_s=[0.1] * replies
    )
    lines = "\n".join(_table(told, None))
    assert "TTFT p50" in lines
    assert ("TTFT p95" in lines) == is_told
