"""Opens a trace, whichever form it has."""

from collections.abc import Iterator
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.workload.trace.entry import TraceEntry
from loadgen.workload.trace.lengths_csv import columns_of, read_lengths
from loadgen.workload.trace.mooncake import read_mooncake
from loadgen.workload.trace.sharegpt import read_sharegpt

HEAD_CHARACTERS = 100_000
"""Of the first line, by which the form is seen; all conversations may stand in that line."""
FORMS = (
    "JSON lines of Mooncake (timestamp, input_length, output_length, hash_ids), a CSV of Azure"
    " (TIMESTAMP, ContextTokens, GeneratedTokens) or BurstGPT (Timestamp, Request tokens,"
    " Response tokens), or conversations of ShareGPT"
)


def read_trace(path: Path) -> Iterator[TraceEntry]:
    """The entries of a trace in their order, one line at a time; the form is seen by the content.

    Raises UsageError, which names file, line and field.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline(HEAD_CHARACTERS).lstrip()
            file.seek(0)
            if '"input_length"' in first:
                yield from read_mooncake(path, file)
            elif first.startswith(("[", "{")):
                yield from read_sharegpt(path, file)
            elif (columns := columns_of(first)) is not None:
                yield from read_lengths(path, file, columns)
            else:
                raise UsageError(f"{path} is no trace: give {FORMS}")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a trace") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text: give {FORMS}") from None
