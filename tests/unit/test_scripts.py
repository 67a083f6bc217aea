"""The scripts of `make`, with programs that stand in for those of the system."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    path.chmod(0o755)


def test_packages_that_cannot_be_installed_are_told_and_the_tests_go_on(tmp_path: Path) -> None:
    program(tmp_path, "id", "echo 0")
    program(tmp_path, "apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{tmp_path}/asked; exit 100')
    done = subprocess.run(
        [str(shutil.which("bash")), str(ROOT / "scripts" / "debian.sh")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("not installed: chromium")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == ["noninteractive update -qq", "noninteractive install -y -qq chromium"]


def scripts(tmp_path: Path) -> Path:
    """A checkout with nothing but scripts, whose pytest says what it is given."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program(tmp_path / ".venv" / "bin", "pytest", 'echo "$PYTHONPATH" "$@"')
    return tmp_path


def said(checkout: Path, *words: str) -> str:
    script = str(checkout / "scripts" / "test.sh")
    done = subprocess.run([script, *words], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_options_alone_are_for_all_tests(tmp_path: Path) -> None:
    checkout = scripts(tmp_path)
    every = said(checkout)
    assert every.endswith(" tests")
    assert said(checkout, "-x", "-k", "docs") == f"{every.removesuffix('tests')}-x -k docs tests"
    part = ("-x", "tests/unit/test_scripts.py::test_it")
    assert said(checkout, *part) == " ".join((str(checkout), *part))


def test_an_environment_is_made_anew_where_it_is_half_made(tmp_path: Path) -> None:
    checkout = scripts(tmp_path)
    setup = (checkout / "scripts" / "setup.sh").read_text()
    (function,) = (part for part in setup.split("\n\n") if "environment() {" in part)
    program(checkout, "made", 'echo "$@"')
    script = f"python=./made\n{function}\nenvironment .venv"

    def made() -> str:
        command = [str(shutil.which("bash")), "-c", script]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, cwd=checkout
        )
        return done.stdout.strip()

    assert made() == "-m venv --clear .venv"
    pip = checkout / ".venv" / "bin"
    program(pip, "pip", f'echo "pip 1 from {os.path.realpath(checkout)}/.venv/lib/pip (python 3)"')
    assert made() == ""
    program(pip, "pip", 'echo "pip 1 from /elsewhere/.venv/lib/pip (python 3)"')
    assert made() == "-m venv --clear .venv"
