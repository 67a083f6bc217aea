"""A disk that is full, or a run directory that is deleted, while the load is on."""

import re
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from run_process import TIMEOUT_S, HostProcess, Ran, arguments, wait_until, workers_with_rows

LOAD = ("--model", "normal", "-u", 4, "-r", 4, "-t", "60s", "--output-tokens", 4)


def ran_on(
    host: HostProcess,
    out: Path,
    room: int = resource.RLIM_INFINITY,
    then: Callable[[], None] = lambda: None,
    *more: object,
) -> Ran:
    """A run each of whose files can hold so many bytes."""
    process = subprocess.Popen(
        arguments(host.url, out, *LOAD, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    try:
        then()
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return Ran(process.returncode, output, out)


def is_told(ran: Ran, host: HostProcess, reason: str) -> None:
    assert ran.code == 6, ran.output
    assert ran.output.count(f"cannot be written ({reason}): ending the run") == 1
    assert "Traceback" not in ran.output
    assert "ERROR" not in ran.output
    shown = re.search(r"^requests: (\d+) ok", ran.output, re.MULTILINE)
    assert shown is not None, ran.output
    assert int(shown[1]) == len(host.prompts()), "the figures are those of all requests"


@pytest.mark.parametrize("processes", [(), ("--processes", 2)])
def test_a_full_disk_ends_the_run_with_whole_rows(
    host: HostProcess, tmp_path: Path, processes: tuple[object, ...]
) -> None:
    ran = ran_on(host, tmp_path / "run", 20_000, lambda: None, *processes)
    is_told(ran, host, "File too large")
    for file in ran.out.glob("*.csv"):
        text = file.read_text()
        assert text == "" or text.endswith("\n"), file.name
    rows = ran.rows
    assert 0 < len(rows) < len(host.prompts())
    assert all(None not in row.values() and None not in row for row in rows)
    assert ran.json("summary.json")["requests"] == len(host.prompts())
    assert ran.json("run.json")["exit_code"] == 6


def test_a_disk_that_is_full_from_the_start_is_told(host: HostProcess, tmp_path: Path) -> None:
    ran = ran_on(host, tmp_path / "run", 1_000)
    is_told(ran, host, "File too large")
    assert not list(ran.out.glob("*.tmp")) + list(ran.out.glob(".*"))


def test_a_run_directory_that_is_deleted_ends_the_run(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def delete() -> None:
        wait_until(lambda: workers_with_rows(out, 5) == {"0"})
        shutil.rmtree(out)

    is_told(ran_on(host, out, then=delete), host, "No such file or directory")
    assert not out.exists()


def test_a_last_entry_that_cannot_be_written_is_told(host: HostProcess, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def block() -> None:
        wait_until(lambda: workers_with_rows(out, 5) == {"0"})
        (out / "run.json").unlink()
        (out / "run.json").mkdir()

    ran = ran_on(host, out, resource.RLIM_INFINITY, block, "-t", "4s")
    assert ran.code == 6, ran.output
    assert ran.output.count("cannot be written (Is a directory)") == 1
    assert ran.json("summary.json")["requests"] == len(host.prompts())


@pytest.mark.parametrize("flag", ["--html", "--json-file"])
def test_a_file_of_locust_that_cannot_be_written_at_the_end_leaves_the_exit_code(
    host: HostProcess, tmp_path: Path, flag: str
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    load = ("--model", "normal", "-u", 2, "-r", 2, "-t", "3s", flag, folder / "page")
    command = arguments(host.url, tmp_path / "run", *load)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: bool(host.prompts()))
        folder.rmdir()
        folder.write_text("a file")
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert output.count("cannot be written") == 1
    assert "Traceback" not in output
    assert Ran(0, output, tmp_path / "run").json("run.json")["exit_code"] == 0
