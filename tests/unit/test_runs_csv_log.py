"""CSV text by hand: what a reader of the standard library makes of it."""

import csv
import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadgen.runs.csv_log import to_csv, without_formula

texts = st.text(st.sampled_from("ab1 ,;\"'\n\r\t=+-@é"), max_size=5)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False, width=32)


def expected(value: Any) -> str:
    """A cell by the rules in words: empty, true/false, at most six decimals, no formula."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return without_formula(value) if isinstance(value, str) else str(value)


@given(st.lists(st.lists(texts | numbers | st.booleans() | st.none(), min_size=2), max_size=5))
def test_every_value_reads_back_as_its_cell(rows: list[list[Any]]) -> None:
    read = list(csv.reader(io.StringIO(to_csv(rows), newline="")))
    assert read == [[expected(value) for value in row] for row in rows]


def test_a_carriage_return_ends_no_row() -> None:
    assert to_csv([["a\rb", "x"]]) == '"a\rb",x\n'


def test_a_kind_of_number_or_text_is_written_as_what_it_is_one_of() -> None:
    class Name(str):
        __slots__ = ()

    class Milliseconds(float):
        __slots__ = ()

    assert to_csv([[Name("=1"), Milliseconds(1.5), 2**70]]) == f"'=1,1.5,{2**70}\n"
