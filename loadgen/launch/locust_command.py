"""Locust in this process, with the command line that a run of kvswarm means."""

import gc
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from loadgen.errors import KvswarmError, UsageError
from loadgen.launch.arguments import RunArguments, find_locustfile, our_flags
from loadgen.launch.configured import setting
from loadgen.launch.terminal import say
from loadgen.runs.directory import reason_of
from loadgen.runs.exit_code import WRONG_USE


def run_locust(command: str, run: RunArguments) -> int:
    """Become Locust, with our defaults before the user's own options."""
    os.environ.setdefault("KVSWARM_VIEW", "1" if command == "run" else "")
    sys.argv = locust_argv(command, run)
    from loadgen.swarm.process import THRESHOLDS, die_with_parent

    die_with_parent()
    gc.set_threshold(*THRESHOLDS)  # for the imports below; what they make stays
    from loadgen.swarm.lean_locust import import_locust

    locust_main = import_locust()
    from loadgen.swarm.options.ours import leave_out

    leave_out(our_flags())
    locust: Any = import_module("locust.main")
    locust.merge_locustfiles_content = partial(_load, locust, locust.merge_locustfiles_content)
    begun: list[Any] = []
    locust.locust.events.init.add_listener(lambda environment, **_: begun.append(environment))
    try:
        locust_main()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(bool(leave.code))
        return WRONG_USE if code and not begun else code
    except OSError as error:
        return _unwritten(error, begun)
    return 0


def _unwritten(error: OSError, begun: Sequence[Any]) -> int:
    """Say which file of its own Locust could not write; returns the exit code of the run, which
    Locust may not have asked for yet. Raises UsageError where it was before a run."""
    said = f"{error.filename or 'a file'} cannot be written ({reason_of(error)})"
    if not begun:
        raise UsageError(f"{said}: name another") from error
    if begun[0].process_exit_code is None:
        begun[0].events.quitting.fire(environment=begun[0], reverse=True)
    if begun[0].process_exit_code is None or isinstance(error, BrokenPipeError):
        raise error
    say(said)
    return int(begun[0].process_exit_code)


def _load(locust: Any, merge: Callable[[Any], tuple[Any, ...]], files: list[str]) -> Any:
    """Locust's own step, whose tracebacks become one line. Raises UsageError for a locustfile that
    cannot be imported, and for a user class that it has not."""
    try:
        found = merge(files)
    except KvswarmError:
        raise
    except (Exception, SystemExit) as error:  # who leaves while imported has not run either
        raise UsageError(_broken(files, error)) from error
    classes = sorted(found[0])
    for name in locust.get_parser().parse_args().user_classes or ():
        if name not in classes:
            raise UsageError(f"no user class {name!r} in {files[0]}: it has {', '.join(classes)}")
    return found


def _broken(files: Sequence[str], error: BaseException) -> str:
    """The last place in the user's own file, and what happened there."""
    frames = traceback.extract_tb(error.__traceback__)
    at = [f"{each.filename}, line {each.lineno}" for each in frames if each.filename in files]
    if isinstance(error, SyntaxError):
        at.append(f"{error.filename}, line {error.lineno}")
    reason = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    where = at[-1] if at else files[0]
    return f"{where}: {type(error).__name__}: {reason}: mend the locustfile"


def locust_argv(command: str, run: RunArguments) -> list[str]:
    """Locust's command line for a run; what the user gave stands last and wins."""
    if run.host is None:
        raise UsageError("no host to load")
    mode = ["--headless", "--only-summary"] if command == "run" else ["--web-host", "127.0.0.1"]
    file = str(find_locustfile(run.file))
    level = [] if command == "ui" else ["--loglevel", "WARNING"]
    ours = [*mode, *level, *_own_port(run.rest), "--host", run.host, "--out", str(run.out)]
    return ["locust", "-f", file, *ours, *run.rest]


def _own_port(rest: Sequence[str]) -> list[str]:
    """With `--processes`, master and workers meet on a free port: two runs must not share one."""
    flags = {argument.partition("=")[0] for argument in rest}
    has_processes = "--processes" in flags or setting(rest, "processes")
    if not has_processes or flags & {"--master-bind-port", "--master-port", "--worker"}:
        return []
    from loadgen.targets.hardware import free_ports

    port = str(free_ports(1)[0])
    return ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
