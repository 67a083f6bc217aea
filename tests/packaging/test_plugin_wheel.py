"""The plugin alone: a wheel of one package, whose core needs nothing but Python."""

import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDS_VLLM = {"queue", "safe_queue", "residency", "exposition", "metrics"}
"""Modules of the adapter; metrics need prometheus_client, which vLLM brings."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    source = shutil.copytree(ROOT / "scheduler_plugin", folder / "source", ignore=ignored)
    build = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation"]
    command = [*build, "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    modules = {path.name for path in (ROOT / "scheduler_plugin").glob("*.py")}
    assert names == {f"scheduler_plugin/{name}" for name in modules}


def test_the_wheel_has_no_dependencies(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_string(archive.read(name).decode())
    assert metadata["Name"] == "kvswarm-scheduler-plugin"
    assert metadata.get_all("Requires-Dist") is None


def test_its_core_imports_without_vllm(wheel: Path) -> None:
    modules = {path.stem for path in (ROOT / "scheduler_plugin").glob("*.py")} - NEEDS_VLLM
    core = sorted(f"scheduler_plugin.{name}" for name in modules - {"__init__"})
    assert {"scheduler_plugin.order", "scheduler_plugin.settings"} < set(core)
    script = (
        "import sys, importlib; sys.path.insert(0, sys.argv[1]);"
        "modules = [importlib.import_module(name) for name in sys.argv[2:]];"
        "print({m.__file__.startswith(sys.argv[1]) for m in modules})"
    )
    # Without site-packages: neither vLLM nor the checkout is in reach.
    command = [sys.executable, "-I", "-S", "-c", script, str(wheel), *core]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{True}"
