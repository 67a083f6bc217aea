import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from loadgen.targets.plan import ServicePlan
from loadgen.targets.process import GUARD_MARGIN_S, ServiceProcess

GUARD = [sys.executable, "-m", "loadgen.targets.guard", "--grace-s", "0.2"]
SLEEP = "import time; time.sleep(600)"
# A service with a child that has left its session and takes no SIGTERM.
FAMILY = f"""
import subprocess, sys, time
child = "import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(600)
"""
KVSWARM = """
import os, subprocess, sys
guard = subprocess.Popen([*sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
print(guard.pid, flush=True)
guard.wait()
"""

LOWEST_PRIORITY = 19

Guard = subprocess.Popen[bytes]


@pytest.fixture
def started() -> Iterator[list[Guard]]:
    processes: list[Guard] = []
    yield processes
    for process in processes:
        if process.stdin:
            process.stdin.close()
        process.wait(20)


def start(started: list[Guard], code: str, *options: str, parent: int | None = None) -> Guard:
    ours = [*GUARD, "--parent", str(parent or os.getpid()), *options]
    command = [*ours, "--", sys.executable, "-c", code]
    started.append(subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True))
    return started[-1]


def tree(pid: int, size: int) -> list[psutil.Process]:
    """The processes below `pid`, once there are `size` of them."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = psutil.Process(pid).children(recursive=True)
        if len(found) >= size:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{len(found)} processes below the guard instead of {size}")


def executed(guard: Guard) -> psutil.Process:
    """The service, once it is no longer the guard's fork."""
    (service,) = tree(guard.pid, 1)
    deadline = time.monotonic() + 20
    while service.cmdline() != [sys.executable, "-c", SLEEP] and time.monotonic() < deadline:
        time.sleep(0.05)
    return service


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(("code", "expected"), [("exit(0)", 0), ("exit(3)", 3)])
def test_the_exit_code_is_that_of_the_service(
    started: list[Guard], code: str, expected: int
) -> None:
    assert start(started, code).wait(20) == expected


@pytest.mark.parametrize(("options", "lower"), [((), 0), (("--yield",), 10)])
def test_a_service_leaves_the_processor_to_its_client(
    started: list[Guard], options: tuple[str, ...], lower: int
) -> None:
    guard = start(started, SLEEP, *options)
    service = executed(guard)
    assert service.nice() == min(LOWEST_PRIORITY, psutil.Process(guard.pid).nice() + lower)
    autogroup = Path(f"/proc/{service.pid}/autogroup")
    if autogroup.exists():  # Linux with sched_autogroup: /autogroup-12 nice 10
        assert autogroup.read_text().split()[-1] == str(lower)


def test_a_service_that_was_killed_shows_as_its_signal(started: list[Guard]) -> None:
    guard = start(started, SLEEP)
    tree(guard.pid, 1)[0].kill()
    assert guard.wait(20) == 128 + signal.SIGKILL


def test_closing_stdin_ends_the_whole_family(started: list[Guard]) -> None:
    guard = start(started, FAMILY)
    family = tree(guard.pid, 2)
    assert guard.stdin
    guard.stdin.close()
    assert gone(family)
    assert guard.wait(20) == 128 + signal.SIGTERM


def test_orphans_go_when_the_service_dies(started: list[Guard]) -> None:
    guard = start(started, FAMILY)
    family = tree(guard.pid, 2)
    next(p for p in family if p.ppid() == guard.pid).kill()
    assert gone(family)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_kvswarm_itself_goes(number: signal.Signals, tmp_path: Path) -> None:
    guard = [*GUARD, "--parent", "PARENT", "--", sys.executable, "-c", FAMILY]
    code = KVSWARM.replace(
        "[*sys.argv[1:]]", "[a.replace('PARENT', str(os.getpid())) for a in sys.argv[1:]]"
    )
    kvswarm = subprocess.Popen(
        [sys.executable, "-c", code, *guard], stdout=subprocess.PIPE, text=True
    )
    assert kvswarm.stdout
    guard_pid = int(kvswarm.stdout.readline())
    family = [psutil.Process(guard_pid), *tree(guard_pid, 2)]
    kvswarm.send_signal(number)
    kvswarm.communicate(timeout=20)
    assert gone(family)


async def test_a_guard_that_was_stopped_still_ends_its_service(tmp_path: Path) -> None:
    plan = ServicePlan("sleeper", (sys.executable, "-c", SLEEP), {}, "http://h", "http://h", None)
    service = await ServiceProcess.start(plan, tmp_path, grace_s=0.2)
    below = await asyncio.to_thread(tree, service._guard.pid, 1)
    os.kill(service._guard.pid, signal.SIGSTOP)
    await asyncio.wait_for(service.stop(), GUARD_MARGIN_S - 1)
    assert gone(below)


def test_a_guard_whose_parent_is_already_gone_ends_the_service(started: list[Guard]) -> None:
    assert start(started, SLEEP, parent=1).wait(20) == 128 + signal.SIGTERM


def test_a_terminals_interrupt_does_not_reach_the_service(started: list[Guard]) -> None:
    guard = start(started, SLEEP)
    (service,) = tree(guard.pid, 1)
    os.killpg(guard.pid, signal.SIGINT)
    time.sleep(0.5)
    assert service.is_running()
    assert guard.poll() is None


def test_what_a_killed_service_leaves_in_its_temporary_directory_goes(
    started: list[Guard], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    code = f"import tempfile; open({str(seen)!r}, 'w').write(tempfile.mkdtemp()); {SLEEP}"
    guard = start(started, code)
    (service,) = tree(guard.pid, 1)
    while not seen.exists() or not seen.read_text():
        time.sleep(0.05)
    left = Path(seen.read_text())
    assert left.is_dir()
    service.kill()
    guard.wait(20)
    assert not left.parent.exists()


def test_a_scratch_directory_goes_even_when_kvswarm_is_killed(
    started: list[Guard], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    code = f"open({str(scratch / 'file')!r}, 'w'); {SLEEP}"
    guard = start(started, code, "--scratch-dir", str(scratch))
    while not (scratch / "file").exists():
        time.sleep(0.05)
    assert guard.stdin
    guard.stdin.close()  # as the kernel does for a kvswarm that was killed
    guard.wait(20)
    assert not scratch.exists()


def test_a_scratch_directory_elsewhere_is_swept_at_the_next_start_there(
    started: list[Guard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    left, other = Path("kvswarm-left"), tmp_path / "kvswarm-other"
    code = f"open('kvswarm-left/file', 'w'); {SLEEP}"
    guard = start(started, code, "--scratch-dir", str(left))
    while not (left / "file").exists():
        time.sleep(0.05)
    guard.kill()  # as a loss of power would
    guard.wait(20)
    assert left.exists()
    assert start(started, "exit(0)", "--scratch-dir", str(other)).wait(20) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_directory_that_is_there_already_is_refused_and_kept(
    started: list[Guard], tmp_path: Path
) -> None:
    (tmp_path / "stale").touch()
    ran = tmp_path / "ran"
    guard = start(started, f"open({str(ran)!r}, 'w')", "--scratch-dir", str(tmp_path))
    assert guard.wait(20) == 1
    assert not ran.exists()
    assert (tmp_path / "stale").exists()
