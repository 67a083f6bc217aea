"""The process between kvswarm and a service, which sees to it that nothing is left running.

`python -m loadgen.targets.guard --parent PID --grace-s S -- COMMAND…` runs COMMAND in its own
session until it exits, stdin reaches its end, or the parent is gone: kvswarm holds the other end
of stdin, which the kernel closes however kvswarm ends. Then the service gets SIGTERM, a grace
time, and what is left of its tree SIGKILL. The exit code is the service's, 128 + N for signal N.
With `--scratch-dir PATH` (any number) the service finds an empty directory there, which goes with
it; with `--yield` it leaves the processor to the client, whose clock is what a run is read from.
What the service writes goes to stderr; stdout is closed at the moment at which it has exited, which
is before what it left is ended.
"""

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from loadgen.scratch import scratch_folder

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.1
ORPHAN_GRACE_S = 1.0
KILL_TIMEOUT_S = 5.0
YIELDING_NICE = 10
AUTOGROUP = Path("/proc/self/autogroup")


def main() -> int:
    """Run one service to its end and return its exit code."""
    arguments = _arguments()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Orphans of the service become our children, so that its whole tree stays in sight.
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A TMPDIR of the service's own, so that sockets and files it leaves behind go with it.
    folders = arguments.scratch_dir
    with scratch_folder(*folders) as tmpdir, contextlib.ExitStack() as stack:
        for path in map(Path.resolve, folders):
            stack.enter_context(_scratch(path))
            if path.parent != tmpdir.parent.resolve():
                # For the sweep of the next start there; some file systems know no locks.
                with contextlib.suppress(OSError):
                    stack.enter_context(scratch_folder(path, place=path.parent))
        service = _spawn(arguments.command, str(tmpdir), yields=arguments.yields)
        ended = _end_of(service)
        while not (stop.is_set() or _is_over(service, arguments.parent)):
            select.select([0, *ended], [], [], POLL_S)
        sys.stdout.close()
        return _end(service, arguments.grace_s)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loadgen.targets.guard")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--grace-s", type=float, required=True)
    parser.add_argument("--scratch-dir", type=Path, action="append", default=[])
    parser.add_argument("--yield", action="store_true", dest="yields")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@contextlib.contextmanager
def _scratch(path: Path) -> Iterator[None]:
    """The directory that was named; an existing one is refused, as its files would be counted."""
    path.mkdir(mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _spawn(command: list[str], tmpdir: str, *, yields: bool) -> subprocess.Popen[bytes]:
    """Start the service in a session of its own; its stdout would hold ours open."""

    def prepare() -> None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if yields:
            _yield_processor()

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={**os.environ, "TMPDIR": tmpdir},
        start_new_session=True,
        preexec_fn=prepare,
    )


def _yield_processor() -> None:
    """Lower this process's priority, and its session's: where Linux schedules by session
    (`sched_autogroup_enabled`, sched(7)), a nice value alone only counts within one."""
    os.nice(YIELDING_NICE)
    with contextlib.suppress(OSError):
        AUTOGROUP.write_text(str(YIELDING_NICE))


def _end_of(service: subprocess.Popen[bytes]) -> list[int]:
    """A descriptor that can be read once it has exited, none where the system has no such."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return [os.pidfd_open(service.pid)]
    return []


def _is_over(service: subprocess.Popen[bytes], parent: int) -> bool:
    """Whether the service has exited, stdin is at its end, or the parent is gone."""
    if service.poll() is not None or os.getppid() != parent:
        return True
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def _wait(condition: Callable[[], bool], timeout_s: float = float("inf")) -> bool:
    """Poll until the condition holds, in vain after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _end(service: subprocess.Popen[bytes], grace_s: float) -> int:
    """End the service politely, then everything that is left of it by force."""
    service.terminate()
    _wait(lambda: service.poll() is not None, grace_s)
    _signal(_tree(), signal.SIGTERM)
    _wait(lambda: not _workers(), min(grace_s, ORPHAN_GRACE_S))
    # Again and again: a tree that is being killed may still fork.
    _wait(lambda: not _signal(_workers(), signal.SIGKILL), KILL_TIMEOUT_S)
    _wait(lambda: not _tree(), ORPHAN_GRACE_S)
    _wait(lambda: not _signal(_tree(), signal.SIGKILL), KILL_TIMEOUT_S)
    code = service.wait()
    _reap()
    return 128 - code if code < 0 else code


def _reap() -> None:
    """Collect the orphans we adopted: not every machine has an init that would."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _tree() -> list[psutil.Process]:
    """Every living process below us."""
    return [process for process in psutil.Process().children(recursive=True) if _lives(process)]


def _workers() -> list[psutil.Process]:
    """The tree without Python's resource trackers: those leave by themselves after the others,
    and free the shared memory of the killed."""
    return [process for process in _tree() if not _is_tracker(process)]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> bool:
    """Send the signal; whether there was anyone to send it to."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue
    return bool(processes)


if __name__ == "__main__":
    sys.exit(main())
