"""A trace in place of the drawn stream: what is checked of it, and how it is divided."""

from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.errors import ContextTooLong, UsageError
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.workload.arrivals import Pacer, make_pacer
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import Tokens
from loadgen.workload.trace.selection import Selection, Survey, survey
from loadgen.workload.trace.workload import TracePacer, TraceWorkload, owned

NO_TIMES = "the trace has no times: give --arrivals closed, or constant, poisson or gamma"


@dataclass(frozen=True, slots=True)
class Replay:
    """A trace that has been read through and may be replayed."""

    selection: Selection
    survey: Survey

    @property
    def note(self) -> str:
        """What will be sent, to be said at the start."""
        found, speed = self.survey, self.selection.speed
        length = f" over {found.duration_s:.0f} s" if found.has_times else ""
        faster = f", {speed:g} times as fast as it was" if speed != 1 else ""
        return f"replaying {found.entries} requests of {self.selection.path}{length}{faster}"

    @property
    def changes(self) -> Iterator[str]:
        """What is otherwise than in the trace, to be said too."""
        found, changes = self.survey, self.survey.changes
        if changes.backwards and found.has_times:
            yield (
                f"{changes.backwards} of {found.entries} times in the trace run backwards, by up to"
                f" {changes.most_back_s:.3g} s: these requests are due with the one before them;"
                " sort the trace by time, or replay each of its logs alone"
            )
        if found.has_texts:
            yield (
                "lengths of its texts are estimated, at 4 characters a token, where they are held"
                " against --trace-max-tokens and the model's window"
            )
        if changes.empty:
            yield f"{changes.empty} requests of the trace have no prompt or no reply: left out"

    def to_wire(self, workers: int) -> dict[str, list[int]]:
        """What workers need not find out again: common blocks, and how many entries each owns."""
        counts = [0] * workers
        for index, entry in enumerate(self.selection.entries()):
            counts[owned(index, entry, workers)] += 1
        return {"common": sorted(self.survey.common), "shares": counts}


def check_replay(options: SwarmOptions, batched: bool) -> Replay | None:
    """Read the trace through, where there is one. Raises UsageError."""
    selection = options.trace
    if selection is None:
        if options.arrivals == "trace":
            raise UsageError("--arrivals trace needs a trace: give --trace FILE")
        if options.session_by == "conversation":
            raise UsageError("--session-by conversation needs a trace: give --trace FILE")
        return None
    if batched:
        raise UsageError("--trace is for single requests: run the locustfile replay")
    if options.labels in ("rag", "kv", "shuffled"):
        raise UsageError(f"--labels {options.labels} has no meaning for a trace: give oracle, none")
    if options.workload.system_tokens:
        raise UsageError("--system-tokens has no meaning for a trace: its prompts have their own")
    if selection.speed != 1 and options.arrivals != "trace":
        raise UsageError(
            f"--trace-speed {selection.speed:g} changes the times of the trace, which"
            f" --arrivals {options.arrivals} does not keep: give --arrivals trace"
        )
    found = survey(selection)
    if options.arrivals == "trace" and not found.has_times:
        raise UsageError(f"{selection.path}: {NO_TIMES}")
    return Replay(selection, found)


def check_trace_fit(replay: Replay, window_tokens: int, cache_tokens: int | None) -> None:
    """Raise ContextTooLong when the longest request does not fit in model and KV cache."""
    limit = window_tokens if cache_tokens is None else min(window_tokens, cache_tokens)
    longest = replay.survey.longest_tokens
    about = "about " if replay.survey.has_texts else ""
    if longest > limit:
        raise ContextTooLong(
            f"the longest request of the trace has {about}{longest} tokens with its reply, but"
            f" {limit} is the most that fits: give --trace-max-tokens {limit} to leave longer ones"
            " out, or a smaller --trace-length-scale"
        )


def pacer_of(options: SwarmOptions) -> Pacer | None:
    """What says when requests are due; None in the closed loop. Raises UsageError."""
    if options.arrivals == "trace" and options.trace is not None:
        if options.rate is not None:
            raise UsageError(f"--rate {options.rate} does not change a trace: give --trace-speed")
        return TracePacer(options.trace)
    return make_pacer(options.arrivals, options.rate, options.workload.seed, options.burstiness)


def trace_workload(
    options: SwarmOptions,
    corpus: Corpus,
    tokens: Tokens,
    common: frozenset[int],
    worker_index: int,
    workers: int,
) -> TraceWorkload:
    """A worker's share of the trace."""
    assert options.trace is not None
    seed = options.workload.seed
    return TraceWorkload(
        corpus, options.trace, common, tokens, seed=seed, worker_index=worker_index, workers=workers
    )
