"""A run in words: what was sent, whether to trust it, and the key figures."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dashboards.figures.prompt_length import LEAST_EXPLAINED, computed_cloud
from dashboards.figures.requests import changes_by_chance, context_changes
from dashboards.report.figures_of import RunFigures
from dashboards.report.health import Check
from dashboards.report.run_files import ReportedRun
from dashboards.report.tables import frequent_errors, gate_of
from dashboards.report.wording import NOTHING, counted, listed, milliseconds, number, percent


def sentences(run: ReportedRun, figures: RunFigures, found: list[Check]) -> list[str]:
    """The verdict, a paragraph each."""
    return [
        _sent(run, figures),
        *_failures(run, figures),
        *_gate(run),
        _trust(found),
        *_latency(run, figures),
        *_goodput(run, figures),
        *_cache(run, figures),
        *_retrieval(figures),
        *_order(run),
    ]


def _sent(run: ReportedRun, figures: RunFigures) -> str:
    if not figures.requests:
        return "No request was recorded."
    contexts = sum(bool(run.drawn.contexts[each]) for each in np.unique(run.drawn.context))
    about = f" about {counted(contexts, 'context')}" if contexts else ""
    tokens = figures.of("prompt_tokens", "mean")
    length = f", prompts of {number(round(tokens))} tokens on average" if tokens else ""
    return (
        f"{counted(figures.requests, 'request')}{about}{length}, in"
        f" {number(figures.duration_s, 's')}, {_pace(run.description)} to {_target(run)}."
    )


def _failures(run: ReportedRun, figures: RunFigures) -> Iterator[str]:
    if figures.failed:
        most = next(
            (f", most often: {text}" for _, text in frequent_errors(run, 1, failed=True)), ""
        )
        finished, share = figures.finished, percent(figures.failed / figures.finished)
        yield f"{figures.failed:,} of {finished:,} finished requests failed ({share}{most})."


def _gate(run: ReportedRun) -> Iterator[str]:
    """What became of its own gate."""
    told = gate_of(run)
    if told is not None:
        broken = [
            f"{each['limit']} ({each['found']})" for each in told["limits"] if not each["met"]
        ]
        yield f"{told['verdict'].capitalize()}{f': {listed(broken)}' if broken else ''}."


def _pace(description: Any) -> str:
    options = description.get("options") or {}
    arrivals = options.get("arrivals")
    if arrivals == "trace":
        return "in an open loop at the times of a trace"
    if arrivals not in (None, "closed"):
        return f"in an open loop ({arrivals}, {options.get('rate')} a second)"
    users = description.get("users")
    return "sent" if users is None else f"from {counted(users, 'user')} in a closed loop"


def _target(run: ReportedRun) -> str:
    name = (run.description.get("target") or {}).get("name")
    model = run.description.get("model")
    where = name or run.description.get("host") or "a host that is not known"
    return f"{where} with the model {model}" if model else str(where)


def _trust(found: list[Check]) -> str:
    doubts = list(dict.fromkeys(check.name for check in found if check.state in ("doubt", "bad")))
    unknown = list(dict.fromkeys(check.name for check in found if check.state == "unknown"))
    if not doubts and not unknown:
        return "Its own health checks found nothing against these figures."
    said = f"Mind before you trust it: {listed(doubts)}" if doubts else "Nothing speaks against it"
    return f"{said}{f'; not known: {listed(unknown)}' if unknown else ''} (see Health)."


def _latency(run: ReportedRun, figures: RunFigures) -> Iterator[str]:
    if not figures.ok:
        yield "No request ended ok, so there are no latencies."
        return
    ttft, e2e = (
        " / ".join(milliseconds(figures.of(name, each)) for each in ("p50", "p95"))
        for name in ("ttft_ms", "e2e_ms")
    )
    yield (
        f"First token after {ttft} and complete reply after {e2e} (p50 / p95);"
        f" {number(figures.rates['requests_per_s'])} requests/s and"
        f" {number(figures.rates['output_tokens_per_s'])} output tokens/s, with those of prompts"
        f" {number(figures.rates['total_tokens_per_s'])}; at most"
        f" {counted(run.requests.peak_concurrency, 'request')} at once."
    )


def _goodput(run: ReportedRun, figures: RunFigures) -> Iterator[str]:
    if figures.rates["goodput_share"] is not None:
        objective = run.options.get("slo")
        yield (
            f"{percent(figures.rates['goodput_share'])} of the finished requests kept the objective"
            f"{f' {objective}' if objective else ''}: a goodput of"
            f" {number(figures.rates['goodput_per_s'])} requests/s."
        )


def _cache(run: ReportedRun, figures: RunFigures) -> Iterator[str]:
    server = figures.server
    if server.get("hit_rate") is not None:
        said = f"{percent(server['hit_rate'])} of the prompt tokens came from the prefix cache"
        if server.get("external_prompt_tokens"):
            said += f" and {percent(server.get('external_hit_rate'))} from the cache behind it"
        yield f"{said}; {number(server.get('computed_prompt_tokens'))} tokens were computed."
    elif (share := figures.rates["cached_share"]) is not None:
        yield f"By the replies {percent(share)} of the prompt tokens were cached."
    cloud = computed_cloud(run.drawn)
    fit = None if cloud is None else cloud.fit
    if fit is not None and fit.low > 0 and fit.explained >= LEAST_EXPLAINED:
        yield (
            f"Each 1,000 prompt tokens that had to be computed cost about"
            f" {milliseconds(1000 * fit.slope)} of time to first token, waiting included."
        )


def _retrieval(figures: RunFigures) -> Iterator[str]:
    names = ("label_accuracy", "refused_share", "retrieval_share")
    right, refused, share = (percent(figures.rates[name]) for name in names)
    if refused != NOTHING:
        yield (
            f"Of the labels that can be judged {right} were right; retrieval found no context for"
            f" {refused} of the questions and took {share} of the time to first token."
        )


def _order(run: ReportedRun) -> Iterator[str]:
    order = run.drawn.context[run.drawn.service_order]
    if len(np.unique(order)) < 2:
        return
    yield (
        f"In the order of service the context changed {context_changes(order):,} times in"
        f" {len(order):,} requests; in a random order it would be about"
        f" {round(changes_by_chance(order)):,} times."
    )
