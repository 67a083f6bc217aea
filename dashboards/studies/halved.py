"""What half the bytes for a token are worth under load: KV in eight bits, of equal memory."""

from collections.abc import Iterator, Sequence

from dashboards.studies.answer import NOT_MEASURED, MarkdownTable, StudyAnswer, cell_table
from dashboards.studies.cell import COMPUTED, EIGHT_BITS, FIRST, PLAIN, Cells
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.study import StudyQuestion
from dashboards.studies.task1.caches import error
from dashboards.studies.wording import count, percent, span
from loadgen.locality.measured import MeasuredRun, measured_run, run_bytes_per_token

COLUMNS = ("requests", "hit_rate", FIRST, "ttft_p95_ms", "tpot_p50_ms", COMPUTED)
Measured = Sequence[MeasuredRun]


def halved(cells: Cells) -> StudyAnswer:
    """Each size of 16 bits against the double of eight; requests and their orders are the same."""
    pairs = [
        (size, part, double)
        for size, part in cells.where(target=PLAIN).by("kv_tokens")
        if len(part.counted)
        and len((double := cells.where(target=EIGHT_BITS, kv_tokens=2 * float(size))).counted)
    ]
    found = [(size, _measured(part), _measured(double)) for size, part, double in pairs]
    names = "16 bits, mean TTFT", "eight bits, mean TTFT"
    contrasts = [
        (f"{count(float(size))} tokens", contrast(part, double, names))
        for size, part, double in pairs
    ]
    told = [each for _, *both in found for one in both for each in one]
    return StudyAnswer(
        "What is a cache worth that holds twice the tokens in the same memory?",
        (
            *(_gain(*each) for each in found),
            *_bytes(pairs),
            *(error(told) if told else (NOT_MEASURED,)),
            Contrasts("", tuple(contrasts)).said("Against the memory of so many tokens in 16 bits"),
        ),
        (_predictions(found), cell_table(cells, ("target", "kv_tokens"), COLUMNS)),
    )


def _measured(cells: Cells) -> list[MeasuredRun]:
    return [measured_run(cell.run) for cell in cells.counted]


def _gain(size: str, plain: Measured, double: Measured) -> str:
    """Hit rates of both, as they were and as they were foretold."""
    was, now = (span([each.hit_rate for each in runs], percent) for runs in (plain, double))
    foretold = span([each.predicted for each in double], percent)
    return (
        f"In the memory of {count(float(size))} tokens, KV in eight bits has"
        f" {now} of the prompt tokens from the cache (foretold {foretold}), in 16 bits {was}."
    )


def _bytes(pairs: Sequence[tuple[str, Cells, Cells]]) -> Iterator[str]:
    """What a token takes, where the model of the engines is known."""
    for _, *both in pairs[:1]:
        told = [run_bytes_per_token(part.counted.all[0].run) for part in both]
        if all(told):
            plain, double = (count(float(each or 0)) for each in told)
            yield f"A token takes {plain} bytes in 16 bits and {double} in eight."


def _predictions(found: Sequence[tuple[str, Measured, Measured]]) -> MarkdownTable:
    rows = tuple(
        (
            count(float(size)),
            bits,
            count(runs[0].tokens),
            span([each.predicted for each in runs], percent),
            span([each.hit_rate for each in runs], percent),
        )
        for size, *both in found
        for bits, runs in zip(("16", "8"), both, strict=True)
    )
    header = ("memory, tokens of 16 bits", "bits", "cache, tokens", "predicted", "measured")
    return MarkdownTable(header, rows)


HALVED_QUESTIONS = (StudyQuestion("halved", ("halved",), halved),)
