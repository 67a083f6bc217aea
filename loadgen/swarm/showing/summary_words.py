"""What the terminal says of a run that has ended: a table and lines made from its summary."""

from typing import TYPE_CHECKING, Any

from loadgen.client.failures import one_line
from loadgen.stats.metrics import summarized

if TYPE_CHECKING:  # rich comes when a table is drawn: the first request does not wait for it
    from rich.table import Table

from collections.abc import Iterator, Mapping

from loadgen.stats.steady_state import enough_s, is_notable
from loadgen.stats.summary import TAILS, death_line, known_statistics

MOST_ERRORS = 5
NOTABLE_SHARE = 0.001
NO_CACHED_TOKENS = (
    "cached tokens: the host does not send them, the column is empty"
    " (start vLLM with --enable-prompt-tokens-details; a list call never tells them)"
)

NO_OUTPUT = "output: {} of {} replies brought none: they have no TTFT, and keep no objective"

UNCOUNTED = (
    "token counts: {} of {} replies came without them (`usage`): output tokens/s lacks these, their"
    " TPOT is unknown, and an unknown figure keeps no objective"
)

UNSETTLED = (
    "NOT SETTLED: time to first token kept drifting, so these figures are of no steady state:"
    " let it run longer, or with less load"
)


def summary_table(summary: dict[str, Any]) -> "Table":
    """The latency metrics of a summary as a table, with retrieval and makespan where they were."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("count", "mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for each in summarized():
        metric = known_statistics(summary["metrics"][each.name])
        if each.neutral or not (each.is_usual or metric["count"]):
            continue
        figures = [in_ms(metric[key]) for key in ("mean", "p50", "p90", "p95", "p99", "max")]
        table.add_row(each.name, str(metric["count"]), *figures)
    return table


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The rest of a summary in words."""
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items())
    if not sum(summary["outcomes"].values()):
        outcomes = "none was sent, so that this measured nothing,"
    lines = [
        f"requests: {outcomes} in {summary['duration_s']:.1f} s",
        f"throughput: {_rate(summary['requests_per_s'])} requests/s,"
        f" {_rate(summary['output_tokens_per_s'])} output tokens/s,"
        f" {_rate(summary['total_tokens_per_s'])} tokens/s in and out{_peak(summary)}",
        _cache_line(summary),
    ]
    if summary["batches"]:
        counts = ", ".join(f"{count} {name}" for name, count in summary["batches"].items())
        lines.insert(1, f"batches: {counts}")
    if late := summary.get("late"):
        lines.append(
            f"late: {late} requests were cut off when they had waited too long, and count with"
            " what they had at least: their latencies are lower bounds"
        )
    if summary["goodput_share"] is not None:
        lines.append(
            f"goodput: {_percent(summary['goodput_share'])} of requests within the objective,"
            f" {_rate(summary['goodput_per_s'])} requests/s"
        )
    if summary["resends"]:
        lines.append(f"sent again: {summary['resends']}, as the host had closed kept connections")
    if summary["retries"]:
        lines.append(f"tried again: {summary['retries']} times, as the host had rejected them")
    if summary["refused_share"] is not None:
        lines.append(_retrieval_line(summary))
    if summary.get("server_note"):
        lines.append(summary["server_note"])
    lines += _replica_lines(summary.get("replicas"))
    lines += [f"ENGINE DIED: {death_line(each)}" for each in summary.get("engine_deaths") or []]
    lines += _lacks(summary)
    if summary["diversity"]:
        lines.append(_diversity_line(summary["diversity"]))
    if summary["lost_workers"]:
        lines.append(
            f"{summary['lost_workers']} WORKER(S) LOST: {summary['lost_share']:.0%} of the load was"
            " not sent from then on"
        )
    if summary["stats_reset_s"] is not None:
        lines.append(f"figures count from the reset at {summary['stats_reset_s']:.1f} s on")
    timed = [summary["metrics"][each.name] for each in summarized() if not each.neutral]
    if any(each["count"] and each != known_statistics(each) for each in timed):
        lines.append(TAILS)
    lines += steady_lines(summary)
    lines += token_time_lines(summary.get("token_times") or {})
    if summary["client_saturated"]:
        lines.append("CLIENT SATURATED: the load generator lagged; do not trust these figures")
    return lines


def _replica_lines(replicas: Mapping[str, Any] | None) -> Iterator[str]:
    """Of several engines: what each had, and whether contexts kept to one of them."""
    if replicas is None:
        return
    for name, told in replicas["engines"].items():
        parts = [] if told["share"] is None else [f"{in_percent(told['share'])} of requests"]
        if told["contexts"] is not None:
            parts.append(f"{told['contexts']} contexts")
        if told["hit_rate"] is not None:
            parts.append(f"hit rate {_percent(told['hit_rate'])}")
        if told["computed_prompt_tokens"] is not None:
            parts.append(f"{told['computed_prompt_tokens']:,.0f} prompt tokens computed")
        yield f"{one_line(name, 60)}: {', '.join(parts) or 'nothing known'}"
    if replicas["context_affinity"] is not None:
        share = in_percent(replicas["context_affinity"])
        yield f"affinity: {share} of requests went to the usual engine of their context"


def _lacks(summary: dict[str, Any]) -> Iterator[str]:
    """What replies that ended well did not bring or tell."""
    ok, late = summary["outcomes"]["ok"], summary.get("late") or 0
    counts = {name: metric["count"] for name, metric in summary["metrics"].items()}
    if (silent := ok + late - counts["ttft_ms"]) > 0:
        yield NO_OUTPUT.format(silent, ok)
    is_list = bool(summary["batches"]) and summary["output_tokens_per_s"] is not None
    if counts["output_tokens"] < ok and not is_list:  # a list call is counted as a whole
        yield UNCOUNTED.format(ok - counts["output_tokens"], ok)
    if summary["odd_counts"]:
        yield (
            f"cached tokens: {summary['odd_counts']} of {ok} replies told more of them than their"
            " prompt has: left out, see `error` of requests.csv"
        )
    elif ok and not counts["cached_tokens"]:
        yield NO_CACHED_TOKENS


def token_time_lines(times: Mapping[str, Any]) -> list[str]:
    """Of `token_times` of a summary; none where every token has a time of its own."""
    said = []
    if times.get("clock") == "event loop":
        said.append("by the clock of the event loop, not the kernel's")
    if (times.get("shared_share") or 0.0) >= NOTABLE_SHARE:
        said.append(f"{times['shared_share']:.1%} are those of the token before, read with it")
    if (times.get("late_share") or 0.0) >= NOTABLE_SHARE:
        said.append(
            f"{times['late_share']:.1%} are not their own, as they were read late, by up to"
            f" {times['late_mean_ms']:.0f} ms"
        )
    if (times.get("full_share") or 0.0) >= NOTABLE_SHARE:
        said.append(f"behind {times['full_share']:.1%} of reads there was more than 16 KB")
    return [f"times of tokens: {'; '.join(said)}"] if said else []


def error_lines(runner: Any) -> list[str]:
    """The most frequent failures and the exceptions of users, a line each."""
    failures = sorted(runner.errors.values(), key=lambda failure: -failure.occurrences)
    told = [f"{failure.occurrences} x {failure.error}" for failure in failures]
    raised = runner.exceptions.values()
    said = [f"{row['count']} x exception in a user: {one_line(str(row['msg']))}" for row in raised]
    return [*_first(told, "failures"), *_first(said, "exceptions")]


def _first(lines: list[str], kind: str) -> list[str]:
    more = len(lines) - MOST_ERRORS
    return lines[:MOST_ERRORS] + ([f"and {more} more kinds of {kind}"] if more > 0 else [])


def _percent(share: float) -> str:
    """To a tenth; only the whole is 100 %."""
    return f"{min(share, 0.9999):.2%}" if 0.9995 <= share < 1 else f"{share:.1%}"


def _rate(value: float | None) -> str:
    """Less than one a second with two digits that count: 0.04 is not 0."""
    if value is None:
        return "-"
    return f"{value:.2g}" if 0 < value < 0.95 else f"{value:.1f}"


def _peak(summary: dict[str, Any]) -> str:
    most = summary.get("peak_concurrency")
    return "" if most is None else f"; at most {most} requests at once"


def _cache_line(summary: dict[str, Any]) -> str:
    server, told = summary["server"], summary["cached_share"]
    if not server or server.get("hit_rate") is None:
        started_again = bool(server and server.get("counter_reset"))
        if told is not None:
            lack = "an engine started again" if started_again else "no counters of the engine"
            return (
                f"prompt tokens: {_percent(told)} from cache, by the replies of the host ({lack})"
            )
        if started_again:
            return "prompt tokens: unknown, as an engine started again, and its counters with it"
        return "prompt tokens: nothing is known of the host's cache"
    line = (
        f"prompt tokens: {server['computed_prompt_tokens']:.0f} computed,"
        f" {server['cached_prompt_tokens']:.0f} from cache, hit rate {_percent(server['hit_rate'])}"
    )
    if server.get("external_prompt_tokens"):
        line += f", {_percent(server['external_hit_rate'])} from offload{_tiers(server)}"
    return line


def _tiers(server: dict[str, Any]) -> str:
    """Of what is from offload the part of each tier, where the engine tells them apart."""
    tiers = {
        "memory": "host_prompt_tokens",
        "disk": "disk_prompt_tokens",
        "elsewhere": "other_prompt_tokens",
    }
    known = [name for name, key in tiers.items() if server.get(key)]
    if known == ["elsewhere"]:
        return ""
    parts = [f"{server[tiers[name]]:.0f} {name}" for name in known]
    return f" ({', '.join(parts)})" if parts else ""


def _retrieval_line(summary: dict[str, Any]) -> str:
    share = summary["retrieval_share"]
    return (
        f"retrieval: {_percent(summary['label_accuracy'])} of the labels right,"
        f" {_percent(summary['refused_share'])} refused"
        + ("" if share is None else f", {share:.1%} of TTFT")
    )


def _diversity_line(diversity: dict[str, Any]) -> str:
    return (
        f"diversity: {diversity['distinct_contexts']} contexts,"
        f" effectively {diversity['effective_contexts']:.1f},"
        f" {diversity['entropy_bits']:.2f} bits"
    )


def in_ms(value: float | None) -> str:
    """A time in milliseconds without its unit, `-` for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def in_percent(share: float) -> str:
    """Without decimals; only the whole is 100 %."""
    return f"{min(share, 0.99) if share < 1 else 1:.0%}"


def steady_lines(summary: Mapping[str, Any]) -> list[str]:
    """Of a summary; none where nothing was left out and the run was steady from the start."""
    warmup, steady = summary.get("warmup"), summary.get("steady_state")
    lines = [] if warmup is None else [left_out(warmup)]
    if steady is not None and steady["settled"] is False:
        lines.append(UNSETTLED)
    elif steady is not None and is_notable(steady):
        lines += _found(steady)
    return lines


def left_out(warmup: Mapping[str, Any]) -> str:
    """In words, from the `warmup` of a summary."""
    if not warmup["seconds"]:
        return "warm-up: none was found, so nothing is left out"
    failed = f", {warmup['failed']} of them failed" if warmup["failed"] else ""
    # The engine's counters were read each second, before it was known from where to count.
    whole = "" if warmup["given"] else "; what the server counted is of the whole run"
    how = "" if warmup["given"] else " as they were found to be one"
    return (
        f"warm-up: the first {warmup['seconds']:.4g} s are left out{how},"
        f" {warmup['requests']} requests{failed}{whole}"
    )


def _found(steady: Mapping[str, Any]) -> list[str]:
    ttft_ms, e2e_ms = (
        " / ".join(_ms(known_statistics(steady["metrics"][name])[each]) for each in ("p50", "p95"))
        for name in ("ttft_ms", "e2e_ms")
    )
    rate = steady["requests_per_s"]
    return [
        f"warm-up: {steady['early']} requests of the first {steady['from_s']:.1f} s move the mean"
        f" TTFT by {steady['shift']:+.0%} and are counted above"
        f" (--warmup {enough_s(steady['from_s'])} leaves them out)",
        f"without them: TTFT p50/p95 {ttft_ms} ms, E2E p50/p95 {e2e_ms} ms"
        + ("" if rate is None else f", {_rate(rate)} requests/s"),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
