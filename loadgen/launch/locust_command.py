"""Locust in this process, with the command line that a run of kvswarm means."""

import gc
import os
import socket
import sys
from collections.abc import Sequence

from loadgen.errors import UsageError
from loadgen.launch.arguments import RunArguments, find_locustfile, our_flags
from loadgen.launch.configured import setting


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
    try:
        locust_main()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(bool(leave.code))
    return 0


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return ["--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--master-port", port]
