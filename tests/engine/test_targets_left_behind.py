"""A kvswarm that is killed leaves no engine behind."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from loadgen.targets.demo_model import build_model

pytestmark = pytest.mark.engine

KVSWARM = """
import asyncio, json, sys
from pathlib import Path
from loadgen.targets.catalog import load_catalog
from loadgen.targets.target import TargetSettings, start_target

async def main(model, log_dir):
    spec, settings = load_catalog()["vllm-no-prefix-cache"], TargetSettings(model, kv_tokens=2560)
    async with start_target(spec, settings, Path(log_dir)) as target:
        state = await target.make_cold()
        print(json.dumps({"state": state, "pids": target.facts()["pids"]["vllm"]}), flush=True)
        await target.wait_died()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_kill_of_kvswarm_takes_the_whole_engine_with_it(tmp_path: Path) -> None:
    model = build_model(tmp_path / "tiny", "tiny", ["A text to learn from. " * 20])
    command = [sys.executable, "-c", KVSWARM, str(model), str(tmp_path / "log")]
    kvswarm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert kvswarm.stdout
    told = json.loads(kvswarm.stdout.readline())
    assert told["state"] == "cold"
    engine = [psutil.Process(pid) for pid in told["pids"]]
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= {p.cmdline()[0].strip() for p in engine}
    kvswarm.kill()
    kvswarm.communicate(timeout=60)
    _, alive = psutil.wait_procs(engine, timeout=60)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
