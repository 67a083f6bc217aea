"""`kvswarm sweep` on targets, with engines that are not real: starts, caches, deaths."""

import asyncio
import csv
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
from fake_engine import CATALOG

from loadgen.cli.sweep import sweep_command
from loadgen.errors import HostError, UsageError
from loadgen.launch.checking import require_services
from loadgen.launch.sweep_run import SweepRun, make_sweep
from loadgen.sweep.definition import read_definition
from loadgen.workload.corpus import load_corpus

TARGETS = f"""{CATALOG}
[targets.mortal]
extends = "sound"
args = ["--lives", "0"]
"""
SWEEP = """
name = "engines"
[options]
targets = "CATALOG"
model = "m"
context-tokens = 50
output-tokens = 2
users = 1
run-time = "1s"
max-lag-ms = 60000
[axes]
target = ["sound", "mortal"]
contexts = [2, 3]
[[skip]]
target = "mortal"
contexts = 3
"""


def test_cells_share_an_engine_that_is_cold_for_each(tmp_path: Path) -> None:
    (tmp_path / "targets.toml").write_text(TARGETS)
    (tmp_path / "sweep.toml").write_text(SWEEP.replace("CATALOG", str(tmp_path / "targets.toml")))
    command = [sys.executable, "-m", "loadgen.cli.main", "sweep", str(tmp_path / "sweep.toml")]
    command += ["--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("starting sound for 2 runs") == 1

    with (tmp_path / "out" / "cells.csv").open(newline="") as file:
        rows = {(row["target"], row["contexts"]): row for row in csv.DictReader(file)}
    assert "engine exited with code 7" in rows["mortal", "2"]["fault"]
    assert rows["mortal", "2"]["exit_code"] == "3"
    sound = [rows["sound", "2"], rows["sound", "3"]]
    assert [(row["exit_code"], row["cache_state"]) for row in sound] == [("0", "cold")] * 2
    runs = [tmp_path / "out" / row["run"] for row in sound]
    pids = [json.loads((run / "run.json").read_text())["target"]["pids"] for run in runs]
    assert pids[0] == pids[1]
    assert (runs[0] / "engine" / "engine.log").samefile(runs[1] / "engine" / "engine.log")


HEARD = """
name = "heard"
[options]
targets = "CATALOG"
target = "sound"
model = "m"
users = 1
run-time = "1s"
MORE
[[cells]]
contexts = 2
[[cells]]
contexts = 3
l1-gb = 2
"""


def planned(folder: Path, more: str = "") -> SweepRun:
    """A sweep of two cells on an engine that is not started, of which one names its memory."""
    (folder / "targets.toml").write_text(CATALOG)
    text = HEARD.replace("CATALOG", str(folder / "targets.toml")).replace("MORE", more)
    (folder / "sweep.toml").write_text(text)
    return SweepRun.plan(read_definition(folder / "sweep.toml"), folder / "out")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("L1_GB", "4", "--l1-gb 1.0, which is 4.0 now"),
        ("ENGINE_ARG", "--hf-token=abc", "--engine-arg unset, which is --hf-token=*** now"),
        ("SIZE", "small", "--size tiny, which is small now"),
        ("ZIPF", "1", "--zipf 0.0, which is 1.0 now"),
        ("EXCLUDE_TAGS", "slow", "--exclude-tags unset, which is slow now"),
        ("CSV", "x", "--csv x: each run would overwrite it"),
        ("KEEP_CACHE", "true", "--keep-cache False, which is True now"),
        ("LOGLEVEL", "DEBUG", ""),
        ("START_TIMEOUT", "5", ""),
    ],
)
def test_what_the_environment_says_of_load_and_engine_may_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = planned(tmp_path)
    sweep.folder.open(sweep.definition, sweep.cells, sweep.order, sweep.heard)
    monkeypatch.setenv(f"LOCUST_{variable}", value)
    refused = pytest.raises(UsageError, match=re.escape(said)) if said else nullcontext()
    with refused:
        planned(tmp_path)
    assert {path.name for path in Path().iterdir()} <= {"out", "sweep.toml", "targets.toml"}


@pytest.mark.parametrize("labels", ["rag", "kv"])
def test_a_service_of_labels_that_is_not_there_is_found_before_an_engine_starts(
    tmp_path: Path, labels: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = planned(tmp_path, f'labels = "{labels}"\nrag-url = "http://127.0.0.1:9"')
    with pytest.raises(HostError, match=f"{labels.upper()} service: host http://127.0.0.1:9 "):
        make_sweep(sweep.definition, sweep.folder.path)
    assert not sweep.folder.path.exists()
    assert "starting" not in capsys.readouterr().err


class LabelService(BaseHTTPRequestHandler):
    """Ready, with every document of the demo corpus, by retrieval and by KV."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        documents = [{"doc_id": each.doc_id} for each in load_corpus().documents]
        of_kv = {"model": "m", "features": "keys", "doc_ids": [], "questions": 0}
        told = {"status": "ready", "data": documents, "has_more": False} | of_kv
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("labels", ["rag", "kv"])
def test_a_service_that_is_there_is_asked_once_for_all_cells(tmp_path: Path, labels: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), LabelService) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        sweep = planned(tmp_path, f'labels = "{labels}"\nrag-url = "{url}"')
        LabelService.asked.clear()
        asyncio.run(require_services(sweep.checked.values()))
        server.shutdown()
    assert LabelService.asked.count("/ready") == 1


@pytest.mark.parametrize("more", [["sweep.toml"], ["--out", "there"], ["--dry-run"]])
def test_a_table_that_is_written_anew_is_asked_for_alone(more: list[str]) -> None:
    with pytest.raises(UsageError, match="--table DIR stands alone"):
        sweep_command(["--table", "here", *more])
