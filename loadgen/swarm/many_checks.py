"""Checks many command lines of Locust as `kvswarm run` checks one, in a fraction of the time.

    python -m loadgen.swarm.many_checks JOB.json ANSWER.json

The job has `argv`, a command line of Locust without options of the user's, `ours`, flags that are
not Locust's, and `checks`, each with the `argv` of a swarm and the `facts` of its target. The
answer has `flags`, every option that Locust knows with the name of its value, and `results` up to
the first that is refused: exit code, what was `said`, and the `options` as the swarm will see them,
null where no swarm would come of it.

What takes long, importing Locust, is done once; each command line then is checked in a fork of its
own, as nothing of Locust can be started twice in a process.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gevent
from locust.argument_parser import get_parser
from locust.main import main as locust_main
from locust.util.load_locustfile import load_locustfile

from loadgen.scratch import scratch_folder
from loadgen.swarm.leading.supervisor import CHECK_VARIABLE, ENVIRONMENT_VARIABLE
from loadgen.swarm.options.ours import leave_out
from loadgen.swarm.process import end_with_parent


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one check."""

    code: int
    said: str
    options: dict[str, Any] | None


def main(job: Path, answer: Path) -> None:
    """Do the job and write the answer."""
    end_with_parent()
    wanted = json.loads(job.read_text(encoding="utf-8"))
    leave_out(wanted["ours"])
    with scratch_folder() as folder:
        flags = _in_fork(partial(_write_flags, wanted["argv"]), folder / "flags")
        results = [flags] if flags.code else list(_checks(wanted["checks"], folder))
    content = {"flags": flags.options or {}, "results": [asdict(each) for each in results]}
    answer.write_text(json.dumps(content), encoding="utf-8")


def _checks(wanted: Sequence[dict[str, Any]], folder: Path) -> list[Checked]:
    results: list[Checked] = []
    for number, each in enumerate(wanted):
        if results and results[-1].code:
            break
        results.append(_in_fork(partial(_check, each, folder), folder / f"{number}"))
    return results


def _check(wanted: dict[str, Any], folder: Path, written: Path) -> None:
    target = folder / "target.json"
    wire = {"facts": wanted["facts"], "control": None, "command_line": []}
    target.write_text(json.dumps(wire), encoding="utf-8")
    os.environ |= {ENVIRONMENT_VARIABLE: str(target), CHECK_VARIABLE: str(written)}
    sys.argv = wanted["argv"]
    locust_main()


def _write_flags(argv: Sequence[str], written: Path) -> None:
    load_locustfile(argv[argv.index("-f") + 1])
    actions = get_parser()._actions
    flags = {flag: action.dest for action in actions for flag in action.option_strings}
    written.write_text(json.dumps(flags), encoding="utf-8")


def _in_fork(work: Callable[[Path], None], written: Path) -> Checked:
    """Work in a process of its own and read what it has written."""
    with tempfile.TemporaryFile() as said:
        child = gevent.fork()
        if not child:
            _leave_after(partial(work, written), said.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        text = said.read().decode(errors="replace")
    options = json.loads(written.read_text(encoding="utf-8")) if written.is_file() else None
    return Checked(code, text, options)


def _leave_after(work: Callable[[], None], said: int) -> None:
    """Never returns into the process that was forked."""
    code = 1
    try:
        end_with_parent()
        os.dup2(said, 1)
        os.dup2(said, 2)
        work()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(bool(leave.code))
    except BaseException as error:  # of the user's locustfile
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
