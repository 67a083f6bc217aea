"""columns.md and exit-codes.md: what a run leaves behind."""

import signal
from dataclasses import fields
from importlib import import_module
from types import ModuleType

from scripts.reference.text import Row, code, listing, meanings, page, phrase


def described(module: str, name: str) -> str:
    found = import_module(module)
    said = meanings(found, name)
    names = [field.name for field in fields(getattr(found, name))]
    return listing((code(each), said[each]) for each in names)


def mapping(module: str, name: str) -> str:
    found = getattr(import_module(module), name)
    return listing((code(each), said) for each, said in found.items())


def columns() -> str:
    return page(
        "Files of a run",
        "Names end in their unit: `_s` seconds since `start_unix_s` of `run.json`, `_ms`"
        " milliseconds, `_mb` millions of bytes. An empty cell or `null` is not known or did not"
        " happen, never 0. In the CSVs an apostrophe stands before text that a spreadsheet would"
        " run, as that beginning with `=`; text that begins with apostrophes has one more.",
        "## requests.csv\n\nIn the order in which requests ended, with their"
        " [outcomes](../start/reading-a-run.md#outcomes).",
        described("loadgen.record", "RequestRecord"),
        "## batches.csv\n\nOnly in runs whose users send batches.",
        described("loadgen.record", "BatchRecord"),
        "## server_metrics.csv\n\nA row before anything is sent, one each second, one after the"
        " drain. What is not of a moment is a total since the engine's start, over all its"
        " replicas. LMCache, memory and CPU are known only of engines that kvswarm started.",
        described("loadgen.stats.server_counters", "ServerSample"),
        "## client_metrics.csv\n\nA row for each second and process that generates load.",
        described("loadgen.stats.self_watch", "ClientSample"),
        "## locust_stats.csv and others\n\n`locust_stats`, `_stats_history`, `_failures` and"
        " `_exceptions` have the columns that Locust documents, with rows of type `LLM` beside its"
        " own. They know nothing of warm-up or of what was cancelled.",
        "## summary.json and summary.csv\n\nRates and shares are those of [metrics](metrics.md)."
        " The CSV has a row for each metric with its statistics, and one for each other figure,"
        " under dotted names such as `server.hit_rate`.",
        mapping("loadgen.stats.summary", "FIELDS"),
        "### server\n\nWithout a word: how much that column of `server_metrics.csv` rose, or other"
        " columns tell.",
        mapping("loadgen.stats.server_counters", "FIGURES"),
        "### diversity",
        described("loadgen.workload.diversity", "Diversity"),
        "## run.json",
        mapping("loadgen.runs.directory", "RUN_FIELDS"),
    )


def exit_codes() -> str:
    from loadgen.compare import gate
    from loadgen.errors import TargetError
    from loadgen.launch.terminal import Interruption
    from loadgen.runs import exit_code

    def codes(module: ModuleType) -> list[Row]:
        said = meanings(module)
        found = {n: v for n, v in vars(module).items() if n in said and isinstance(v, int)}
        return [(code(value), phrase(said[name])) for name, value in found.items()]

    wrong = ("`2`", "wrong use, or runs that are not comparable")
    fault = ("`70`", "a fault of `kvswarm compare` itself, or unwritable output")
    return page(
        "Exit codes",
        "## run, sweep, saturate, study, demo, advise --verify",
        listing(codes(exit_code)),
        "6 comes before 3, 3 before 2, 2 before 1, and 1 before 5; of several runs the worst"
        " counts. `saturate` says 1 where not even the lowest load meets the objective."
        " Before a swarm has started, Ctrl-C or a signal gives 128 and its number.",
        "## compare",
        listing(sorted([*codes(gate), wrong, fault], key=lambda row: int(row[0].strip("`")))),
        "1 comes before 4.",
        "## All others",
        listing(
            [
                (code(Interruption(signal.SIGINT).exit_code), "done, as a server is by Ctrl-C"),
                ("`1`", "something outside failed: folder, file, stdout, service"),
                ("`2`", "wrong use"),
                (code(TargetError.exit_code), "an engine did not start, or died"),
                ("`130`", "ended by Ctrl-C"),
            ]
        ),
    )
