"""A wheel with base dependencies alone drives a remote host: no torch, vLLM, LMCache, Chroma."""

import csv
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.targets.hardware import free_ports

ROOT = Path(__file__).parents[2]
MOST_BYTES = 1_318_000
"""Of a wheel: code, pages' styles and the demo corpus, but no weights and no questions of tests."""
HEAVY = ("torch", "vllm", "lmcache", "chromadb", "transformers", "scipy")

ENV = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without the checkout, which may be on the path of the tests."""

pytestmark = pytest.mark.timeout(420)


def call(*command: object, timeout_s: float = 300) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd="/",
        env=ENV,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    paths = map(Path, filter(None, listed.stdout.decode().split("\0")))
    return [path for path in paths if (ROOT / path).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of what is tracked alone: what earlier builds left in a checkout would get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in tracked:
        (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / "source" / path)
    build = [sys.executable, "-m", "build", "-q", "--wheel", "--no-isolation"]
    call(*build, "--outdir", folder / "dist", folder / "source")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment with nothing but the wheel and its base dependencies."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "-q", wheel)
    return python


def test_the_wheel_has_every_module_and_no_other(wheel: Path, tracked: list[Path]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    names = settings["setuptools"]["packages"]["find"]["include"]
    packages = {name.removesuffix("*") for name in names}
    modules = {path for path in tracked if path.suffix == ".py" and path.parts[0] in packages}
    held = {Path(name) for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert held == modules
    assert wheel.stat().st_size <= MOST_BYTES


@pytest.fixture
def host() -> Iterator[str]:
    (port,) = free_ports(1)
    process = subprocess.Popen([sys.executable, str(ROOT / "tests/runs/host.py"), str(port)])
    try:
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int) -> None:
    import socket
    import time

    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the host did not come up")


def test_the_engine_is_not_there(python: Path) -> None:
    script = "import importlib.util as u, sys; print([n for n in sys.argv[1:] if u.find_spec(n)])"
    assert call(python, "-c", script, *HEAVY).strip() == "[]"


def test_import_loadgen(python: Path) -> None:
    call(python, "-c", "from kvswarm import *; import loadgen.targets.target")


def test_a_run_against_a_remote_host(python: Path, host: str, tmp_path: Path) -> None:
    kvswarm = python.with_name("kvswarm")
    options = ("--model", "normal", "-u", 2, "-r", 2, "-t", "2s", "--out", tmp_path / "run")
    call(kvswarm, "run", "unordered", "--host", host, *options, timeout_s=60)
    with (tmp_path / "run" / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 2
    assert {row["outcome"] for row in rows} == {"ok"}
    assert len({row["context_id"] for row in rows}) > 1, "the demo corpus is in the wheel"


def test_an_engine_of_ours_says_what_to_install(python: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(python.with_name("kvswarm")), "run", "--target", "vllm", "--out", str(tmp_path / "r")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=ENV,
    )
    assert done.returncode in (2, 3)
    assert "[engine-" in done.stderr or "'vllm" in done.stderr
    assert "Traceback" not in done.stderr
