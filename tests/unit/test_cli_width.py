"""Nothing that a command prints is wider than a terminal of 80 columns, but for words that are."""

import contextlib
import io
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compare_runs import write_run

from loadgen.cli import ladder
from loadgen.cli import main as cli
from loadgen.cli.compare import compare_command
from loadgen.launch import terminal
from loadgen.launch.supervised import print_comparison
from loadgen.locality import causes
from loadgen.stats.summary import summarize
from loadgen.stats.tally import Tally
from loadgen.swarm.showing.summary_words import summary_lines, summary_table
from rag_store.cli.output import fitted, width_of

WIDTH = 80
HELPS = (
    *("run", "ui", "ask", "demo", "serve", "compare", "noise", "report", "sweep", "saturate"),
    *("study", "curve", "model build", "kv record", "kv extract", "kv serve", "rag index"),
    *("rag serve", "rag label", "rag explain", "rag eval", "rag fit-threshold", "rag", ""),
    *("why", "tiers", "calibrate", "simulate", "advise", "policies", "ladder", "model trained"),
    *("kv codecs", "kv link"),
)


@pytest.fixture(autouse=True)
def terminal_of_80(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "dumb")  # without colours, whose codes would count as width
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)


def too_wide(text: str) -> list[str]:
    return [
        line for line in text.splitlines() if len(line) > WIDTH and len(line.strip().split()) > 1
    ]


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with contextlib.suppress(SystemExit):
        cli.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert out + err
    return out + err


@pytest.mark.parametrize("command", HELPS)
def test_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert too_wide(said(capsys, *command.split(), "--help")) == []


REFUSED = [
    ["run", "--host", "http://h", "--kv-tokens", "5"],
    ["curve", "--plan", "unordered", "--tokenizer", "/nowhere/at/all/there/is/such/a/folder"],
    ["targets"],
    ["compare", "a", "b"],
    ["saturate", "--host", "http://127.0.0.1:9"],
    ["rag", "label", "--pth", "what is this question about, and which of the documents has it?"],
    ["frobnicate"],
]


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert too_wide(said(capsys, *arguments)) == []


def test_a_comparison_with_its_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / name, [100.0 + n % 7 for n in range(200)]) for name in "ab"]
    (runs[0] / "summary.json").write_text(json.dumps({"requests": 300}))
    gate = "ttft_ms.p95<=+10%, errors<=0.1%, e2e_ms.mean<=+5%"
    assert compare_command([*map(str, runs), "--gate", gate, "--no-noise"]) == 4
    out = capsys.readouterr().out
    assert "undecided" in out
    assert too_wide(out) == []


def test_targets_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {}
    for name in ("vllm", "vllm-no-prefix-cache", "vllm-lmcache", "vllm-context"):
        runs[name] = tmp_path / name
        runs[name].mkdir()
        (runs[name] / "summary.json").write_text('{"requests_per_s": 123456.7}')
    print_comparison(runs)
    assert too_wide(capsys.readouterr().out) == []


def test_the_summary_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    summary: dict[str, Any] = summarize(
        Tally(), duration_s=36_000.0, diversity=None, server=None, client_saturated=True
    ) | {"cached_share": None, "stats_reset_s": 3.0, "lost_workers": 0}
    text = "\n".join(fitted(line, io.StringIO()) for line in summary_lines(summary))
    Console(highlight=False).print(summary_table(summary))
    assert too_wide(text + "\n" + capsys.readouterr().out) == []


def test_lines_for_whoever_waits(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say("cells made so far and those to come are not of the same versions: " * 3)
    terminal.tell("12 of 40 runs: runs/a-name/of/a/sweep/cells.csv and some more words to read")
    out, err = capsys.readouterr()
    assert too_wide(out + err) == []
    assert err.startswith("kvswarm: cells made so far")
    assert err.splitlines()[1].startswith("  ")


LONG = "a sentence about a figure, of what it is made, and what it means to whoever reads it: " * 2


def test_where_kv_should_live(capsys: pytest.CaptureFixture[str]) -> None:
    for rate, size in (("1000", "4096"), ("900000", "200000")):
        told = said(capsys, "tiers", "--prefill-rate", rate, "--bytes-per-token", size)
        assert "break-even bandwidth" in told
        assert too_wide(told) == []
    rows = [line for line in told.splitlines() if line.startswith(("memory", "NVMe"))]
    assert all(
        "times as" in row and row.split()[-1] in ("tokens", "never", "length") for row in rows
    )


def test_why_tokens_were_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = dict.fromkeys(causes.CAUSES, 1_000_000)
    found = causes.ComputedCauses(known, 10, 9, 1024, 4096, "cached tokens of each reply")
    monkeypatch.setattr(causes, "causes_of_run", lambda run: found)
    told = said(capsys, "why", "runs/one")
    assert "the engine itself counted" in told
    assert too_wide(told) == []


def test_what_was_made_of_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = SimpleNamespace(lines=(LONG,), path=tmp_path)
    made = SimpleNamespace(extract=lambda *_: report)
    monkeypatch.setitem(sys.modules, "kv_reading.extract", made)  # type: ignore[arg-type]
    told = said(capsys, "kv", "extract", tmp_path)
    assert "what it means" in told
    assert too_wide(told) == []


def test_policies_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    told = said(capsys, "policies", "--list")
    assert "sink-window" in told
    assert too_wide(told) == []


def test_what_a_ladder_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = pytest.importorskip("dashboards.ladder_page")
    monkeypatch.setattr(ladder, "_measured", lambda parsed: None)
    monkeypatch.setattr(page, "ladder_findings", lambda found: {"generation": LONG})
    monkeypatch.setattr(page, "write_ladder_page", lambda *_: tmp_path / "ladder.md")
    told = said(capsys, "ladder", "--out", tmp_path)
    assert "what it means" in told
    assert too_wide(told) == []


def test_a_command_to_copy_goes_on_as_shells_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["kvswarm", "run", "batched", *("--header", "a b"), *("--corpus", "a/folder/of/it") * 3]
    shown = terminal.command_line(words)
    assert too_wide(shown) == []
    assert shown.count(" \\\n") == shown.count("\n") == 1
    assert shlex.split(shown.replace("\\\n", "")) == words
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: False)
    assert terminal.command_line(words) == f"  {shlex.join(words)}"


@pytest.mark.parametrize("columns", ["80", ""])
def test_a_file_gets_lines_as_long_as_they_are(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    line = "word " * 40
    assert fitted(line, io.StringIO()) == line
    assert width_of(io.StringIO()) is None


def test_a_terminal_has_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", lambda number: os.terminal_size((50, 20)))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    assert max(map(len, fitted("word " * 40, sys.stdout).splitlines())) <= 50
