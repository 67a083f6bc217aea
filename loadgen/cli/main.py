"""The `kvswarm` command."""

import errno
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from loadgen.errors import KvswarmError, OutputError, RecordError, UsageError
from rag_store.cli.output import complaint, drop_output, told_output
from rag_store.cli.suggestion import nearest

HELP = """\
kvswarm: Locust-style load testing for LLM serving with long, shared contexts

  kvswarm run [FILE] --target NAME[,NAME…] | --host URL [options]
      a headless run, on several targets in turn and side by side; takes any
      option of Locust; exit code 0 done, 1 requests failed, 2 wrong use,
      3 target died, 5 client saturated, 6 run directory not written
  kvswarm ui [FILE] --target NAME | --host URL [options]
      the same from Locust's web UI
  kvswarm ask QUESTION…   find its document, stream an engine's answer
  kvswarm demo   the same batches first come first served, context by context
  kvswarm targets   list the engines that can be started
  kvswarm serve NAME
      start one and keep it until Ctrl-C
  kvswarm compare BASE NEW [--gate LIMITS]
      set two runs against each other, with intervals; exit code 1 a limit is
      broken, 4 the data cannot decide, 2 not comparable
  kvswarm report RUN [RUN…] [-o FILE]
      a page about a run, or several against the first, to read anywhere
  kvswarm sweep FILE.toml [--out DIR] [--dry-run]
      a matrix of runs over options and repeats, one table of all; continues
      where it was stopped
  kvswarm study task1|task2|task3|task4|tiers|engines|fleet|fp8|policies|network
      measure questions about caches and order, write their answers
  kvswarm saturate [FILE] --target NAME | --host URL --slo LIMITS [options]
      find the highest rate, or number of users, that meets an objective
  kvswarm noise RUN RUN RUN…
      how much identical runs differ on this machine, for `compare`
  kvswarm curve RUN | --plan NAME
      predict the prefix-cache hit rate at every cache size, which is enough
  kvswarm tiers [RUN] [--prefill-rate TOKENS/S] [--link LINK]
      from which bandwidth on loading KV is faster than computing it again
  kvswarm calibrate RUN… [-o twin.json]
      fit a twin of a server to its runs
  kvswarm simulate RUN | [FILE] --twin FILE [--kv-tokens N] [--target NAME]
      what a run would be on a twin: of recorded requests, or of the options
      of `run`
  kvswarm advise RUN | [FILE] --twin FILE --slo LIMIT
      the smallest cache, the highest rate and the tier that keep an objective
  kvswarm why RUN
      where each computed prompt token could have been a hit, and the cure
  kvswarm policies [--policy NAME]… [--model trained|DIR] [--quick]
      what KV cache policies save and what they break, on a real model
  kvswarm ladder [--budget-gb GB] [--model trained|DIR] [--quick]
      what a KV cache, a batch and paged blocks buy, measured in one process
  kvswarm rag COMMAND
      find the document a question is about: index, serve, label, explain,
      eval, fit-threshold
  kvswarm kv record|extract|serve|codecs|link
      keep the KV that LMCache stores for known prompts, make features of it;
      label questions by their KV; codecs of KV, and a scarce link
  kvswarm model build|trained [DIR]
      make the demo model (random weights), or a small trained one
  kvswarm --version

`kvswarm COMMAND --help` tells more.
"""

COMMANDS = {
    "advise": "loadgen.cli.advise:advise_command",
    "ask": "loadgen.cli.ask:ask_command",
    "calibrate": "loadgen.cli.twin:calibrate_command",
    "compare": "loadgen.cli.compare:compare_command",
    "curve": "loadgen.cli.curve:curve_command",
    "demo": "loadgen.cli.demo:demo_command",
    "kv": "loadgen.cli.kv:kv_command",
    "ladder": "loadgen.cli.ladder:ladder_command",
    "model": "loadgen.cli.serve:model_command",
    "noise": "loadgen.cli.noise:noise_command",
    "policies": "loadgen.cli.policies:policies_command",
    "rag": "loadgen.cli.rag:rag_command",
    "report": "loadgen.cli.report:report_command",
    "saturate": "loadgen.cli.saturate:saturate_command",
    "serve": "loadgen.cli.serve:serve_command",
    "simulate": "loadgen.cli.simulate:simulate_command",
    "study": "loadgen.cli.study:study_command",
    "sweep": "loadgen.cli.sweep:sweep_command",
    "targets": "loadgen.cli.serve:targets_command",
    "tiers": "loadgen.cli.tiers:tiers_command",
    "version": "loadgen.cli.serve:version_command",
    "--version": "loadgen.cli.serve:version_command",
    "why": "loadgen.cli.why:why_command",
}
"""Module and function of each command but `run` and `ui`."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, with one line on stderr for what the user can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    code = 0
    try:
        with told_output(OutputError):
            code = _run(arguments)
    except KvswarmError as error:
        print(complaint(error), file=sys.stderr)
        return code or error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        drop_output(sys.stdout)
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EACCES, *FULL):
            raise  # a fault of ours, which needs its place
        place = "a file" if error.filename is None else repr(error.filename)
        said = f"{place} cannot be used ({error.strerror}): name another, or make room"
        print(complaint(said), file=sys.stderr)
        return (RecordError if error.errno in FULL else UsageError).exit_code
    return code


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0 if arguments else 2
    return _command(arguments[0])(arguments[1:])


def _command(name: str) -> Callable[[list[str]], int]:
    """Imported only when asked for: a run against a host must start fast."""
    if name in ("run", "ui"):
        from loadgen.cli.run import run_command

        return lambda arguments: run_command(name, arguments)
    if name not in COMMANDS:
        meant = nearest(name, [*COMMANDS, "run", "ui"])
        hint = f"did you mean `kvswarm {meant}`?" if meant else "try `kvswarm --help`"
        raise UsageError(f"unknown command {name!r}: {hint}")
    module, _, function = COMMANDS[name].partition(":")
    command: Callable[[list[str]], int] = getattr(import_module(module), function)
    return command


if __name__ == "__main__":
    sys.exit(main())
