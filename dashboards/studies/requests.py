"""The answered requests of a cell, as columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loadgen.compare.csv_table import CsvTable
from loadgen.compare.requests_csv import HEADER, TimedRequests, read_requests
from loadgen.compare.run import Run
from loadgen.compare.run_reader import read_run
from loadgen.compare.series import Flags, Floats, Indices
from loadgen.errors import UsageError


@dataclass(frozen=True, slots=True)
class Requests:
    """`ok` requests in the order in which they were sent; NaN where a figure is not known."""

    context_id: NDArray[np.str_]
    batch_id: NDArray[np.str_]
    repeat: Flags
    prompt_tokens: Floats
    cached_tokens: Floats
    ttft_ms: Floats
    first_token_s: Floats

    @classmethod
    def read(cls, run: Path) -> "Requests":
        """Those of a run directory. Raises UsageError."""
        table = _table(run)
        sent = TimedRequests.of(table)
        ok = sent.outcome == "ok"

        def text(column: str) -> NDArray[np.str_]:
            known = table.text(column) if column in table.header else [""] * len(table.rows)
            return np.asarray(np.asarray(known, dtype=np.str_)[sent.order][ok])

        return cls(
            text("context_id"),
            text("batch_id"),
            text("repeat") == "true",
            sent.column("prompt_tokens")[ok],
            np.nan_to_num(sent.column("cached_tokens")[ok]),
            sent.column("ttft_ms")[ok],
            sent.column("first_token_s")[ok],
        )

    @classmethod
    def joined(cls, parts: Sequence["Requests"]) -> "Requests":
        """Those of several runs, one after the other."""
        return cls(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields(cls)
            )
        )

    def __len__(self) -> int:
        return len(self.ttft_ms)

    def those(self, which: Flags) -> "Requests":
        """Only some of them."""
        return Requests(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def is_hit(self) -> Flags:
        """Whether more than half of the prompt came from a cache."""
        return self.cached_tokens > self.prompt_tokens / 2

    def turns(self) -> tuple[int, int]:
        """How often the engine turned to another context, in the order of first tokens, and the
        fewest turns there could be: one for each context, of each batch where there are batches."""
        taken = fewest = 0
        for batch in dict.fromkeys(self.batch_id.tolist()):
            of_batch = self.batch_id == batch
            order = np.argsort(self.first_token_s[of_batch], kind="stable")
            served = self.context_id[of_batch][order]
            taken += 1 + int((served[1:] != served[:-1]).sum())
            fewest += len(set(served.tolist()))
        return taken, fewest


def strips(runs: Mapping[str, Requests]) -> tuple[list[str], dict[str, Indices]]:
    """Contexts in the order of their first service, and for each name the order of service as
    positions in them."""
    place: dict[str, int] = {}
    orders: dict[str, Indices] = {}
    for name, run in runs.items():
        served = run.context_id[np.argsort(run.first_token_s, kind="stable")].tolist()
        numbers = [place.setdefault(context, len(place)) for context in served]
        orders[name] = np.asarray(numbers, dtype=np.intp)
    return list(place), orders


@dataclass(frozen=True, slots=True)
class Labels:
    """Of each request with a label the question, variations of it taken for the same, and whether
    the label was right."""

    question: tuple[str, ...]
    right: Flags


def labels_of(run: Path) -> Labels:
    """Those of a run directory. Raises UsageError."""
    table = _table(run)
    known = [
        (question.partition("~")[0], correct == "true")
        for question, correct in zip(
            table.text("question_id"), table.text("label_correct"), strict=True
        )
        if correct
    ]
    return Labels(
        tuple(question for question, _ in known),
        np.asarray([correct for _, correct in known], dtype=np.bool_),
    )


def repeated_part(run: Path, repeated: bool) -> Run:
    """The requests of a run that were repeats of an old one, or those that were not, as a run of
    their own. Both parts count as of one seed, so that they are paired. Raises UsageError."""
    table = _table(run)
    place = table.header.index("repeat")
    wanted = "true" if repeated else "false"
    part = table.where(lambda row: row[place] == wanted)
    name = f"{run} ({'repeats' if repeated else 'first uses'})"
    return Run(name, read_requests(part), facts={"seed": str(run)})


def without_retrieval(run: Path) -> Run:
    """The run with the time of each retrieval taken out of the time to first token, so that it can
    be set beside runs that retrieve nothing. Raises UsageError."""
    table = _table(run)
    place = table.header.index("ttft_ms")
    left_ms = table.numbers("ttft_ms") - np.nan_to_num(table.numbers("retrieval_ms"))
    rows = [
        [*row[:place], "" if np.isnan(ms) else str(ms), *row[place + 1 :]]
        for row, ms in zip(table.rows, left_ms, strict=True)
    ]
    series = read_requests(CsvTable(table.path, table.header, rows))
    return Run(str(run), series, facts=read_run(run).facts)


def _table(run: Path) -> CsvTable:
    table = CsvTable.read(run / "requests.csv").whole()
    if not table.has((*HEADER, "repeat", "context_id", "label_correct")):
        raise UsageError(f"{run} has not the requests.csv of a run: run the study again")
    return table
