"""Which engine of several answered what."""

import tracemalloc
from pathlib import Path

import pytest

from loadgen.runs.replicas import engine_deaths, replica_figures
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.server_counters import Figures
from loadgen.stats.summary import death_line
from loadgen.swarm.showing.summary_words import _replica_lines

HEAD = "request_id,context_id,engine,sent_s,end_s,ttft_ms,e2e_ms,output_tokens,outcome\n"


def requests_of(folder: Path, rows: list[tuple[str, str]]) -> Requests:
    """Of (context, engine), a second apart."""
    lines = [
        f"{number},{context},{engine},{number},{number}.5,100,500,4,ok\n"
        for number, (context, engine) in enumerate(rows)
    ]
    path = folder / "requests.csv"
    path.write_text(HEAD + "".join(lines), encoding="utf-8")
    rows_of = read_requests(path, ("context_id", "engine", "outcome", "sent_s", "end_s"))
    assert rows_of is not None
    return Requests.of(rows_of)


def test_shares_contexts_and_affinity(tmp_path: Path) -> None:
    rows = [("a", "e-1"), ("a", "e-1"), ("a", "e-2"), ("b", "e-2"), ("b", "e-2"), ("c", "")]
    counters: dict[str, Figures] = {"e-1": {"hit_rate": 0.5}, "e-2": {"hit_rate": None}}
    told = replica_figures(requests_of(tmp_path, rows), counters)
    assert told is not None
    first, second = told["engines"].values()
    assert (first["requests"], first["contexts"], first["hit_rate"]) == (2, 1, 0.5)
    assert (second["requests"], second["contexts"]) == (3, 2)
    assert first["share"] + second["share"] == pytest.approx(1)
    assert told["context_affinity"] == pytest.approx(4 / 5)
    assert list(_replica_lines(told))[-1].startswith("affinity: 80% of requests")


def test_engines_of_a_host_that_names_them_need_no_counters(tmp_path: Path) -> None:
    told = replica_figures(requests_of(tmp_path, [("a", "x"), ("b", "y")]), {})
    assert told is not None
    assert list(told["engines"]) == ["x", "y"]
    assert told["context_affinity"] == 1


def test_counters_stand_where_no_reply_names_its_engine(tmp_path: Path) -> None:
    counters: dict[str, Figures] = {
        name: {"hit_rate": 0.25, "computed_prompt_tokens": 1000} for name in ("e-1", "e-2")
    }
    told = replica_figures(requests_of(tmp_path, [("a", ""), ("b", "")]), counters)
    assert told is not None
    assert told["context_affinity"] is None
    lines = list(_replica_lines(told))
    assert lines == [f"e-{n}: hit rate 25.0%, 1,000 prompt tokens computed" for n in (1, 2)]


def test_one_engine_has_no_table(tmp_path: Path) -> None:
    assert replica_figures(requests_of(tmp_path, [("a", "x"), ("b", "x")]), {}) is None
    assert replica_figures(None, {}) is None
    assert list(_replica_lines(None)) == []


def ended(folder: Path, rows: list[tuple[float, str, str]]) -> Requests:
    """Of (end, outcome, engine)."""
    lines = [
        f"{number},a,{engine},0,{end_s},,500,,{outcome}\n"
        for number, (end_s, outcome, engine) in enumerate(rows)
    ]
    path = folder / "requests.csv"
    path.write_text(HEAD + "".join(lines), encoding="utf-8")
    return Requests.of(read_requests(path, ("engine",)))


FIRST = ("e-1", 10.0, "was ended by SIGKILL")


@pytest.mark.parametrize(
    ("later", "failed", "again_s"),
    [
        ([(10.5, "ok", "e-2")], 0, 0.5),
        ([(10.5, "truncated", "e-1"), (11.0, "http_error", ""), (12.5, "ok", "e-2")], 2, 2.5),
        ([(10.5, "ok", "e-2"), (11.0, "http_error", ""), (13.0, "ok", "e-2")], 1, 3.0),
        ([(11.0, "http_error", "e-2"), (11.5, "timeout", ""), (12.0, "cancelled", "")], 0, None),
        ([(11.0, "connect_error", "")], 1, None),
    ],
    ids=["none", "both words", "in between", "not of it", "never again"],
)
def test_what_a_death_cost(
    tmp_path: Path, later: list[tuple[float, str, str]], failed: int, again_s: float | None
) -> None:
    before = [(1.0, "http_error", ""), (9.0, "ok", "e-1")]
    (told,) = engine_deaths(ended(tmp_path, [*before, *later]), [FIRST])
    assert (told["engine"], told["at_s"], told["reason"]) == FIRST
    assert (told["failed"], told["served_again_s"]) == (failed, again_s)


def test_a_death_was_before_the_first_request_that_failed_of_it(tmp_path: Path) -> None:
    rows = [(9.75, "truncated", "e-1"), (9.875, "http_error", ""), (10.0, "ok", "e-2")]
    (told,) = engine_deaths(ended(tmp_path, rows), [FIRST])
    assert (told["at_s"], told["failed"], told["served_again_s"]) == (9.75, 2, 0.25)


def test_a_death_that_is_noted_late_is_blamed_for_what_failed_since_its_last_reply(
    tmp_path: Path,
) -> None:
    gone, served = [(7.5, "truncated", "e-1"), (7.75, "http_error", "")], (7.875, "ok", "e-2")
    rows = [(3.0, "http_error", ""), (7.0, "ok", "e-1"), (7.25, "ok", "e-2"), *gone, served]
    (told,) = engine_deaths(ended(tmp_path, rows), [FIRST])
    assert (told["at_s"], told["failed"], told["served_again_s"]) == (7.5, 2, 0.375)


def test_each_death_is_blamed_for_what_failed_until_the_next(tmp_path: Path) -> None:
    rows = [(10.5, "http_error", ""), (15.0, "ok", "e-2"), (30.5, "http_error", ""), (31, "ok", "")]
    first, second = engine_deaths(ended(tmp_path, rows), [FIRST, ("e-2", 30.0, "has exited")])
    assert (first["failed"], first["served_again_s"]) == (1, 5.0)
    assert (second["failed"], second["served_again_s"]) == (1, 1.0)


def test_without_rows_a_death_is_told_without_its_cost() -> None:
    (told,) = engine_deaths(None, [FIRST])
    assert (told["failed"], told["served_again_s"]) == (None, None)
    assert death_line(told) == "e-1 was ended by SIGKILL at 10.0 s"


def test_a_death_in_words() -> None:
    told = {"engine": "e-1", "at_s": 12.34, "reason": "exited with code 1", "failed": 3}
    assert death_line(told | {"served_again_s": 2.06}) == (
        "e-1 exited with code 1 at 12.3 s: 3 requests failed because of it,"
        " served again after 2.1 s"
    )
    assert death_line(told | {"served_again_s": None}).endswith(
        "because of it, none was ok after it"
    )


def test_a_name_of_an_engine_does_nothing_to_the_terminal(tmp_path: Path) -> None:
    told = replica_figures(requests_of(tmp_path, [("a", "x\x1b[2J"), ("b", "y" * 99)]), {})
    assert told is not None
    first, second, _ = _replica_lines(told)
    assert first.startswith("x?[2J: 50% of")
    assert second.startswith("y" * 59 + "…: 50% of")


def test_a_name_for_each_request_is_none_of_an_engine(tmp_path: Path) -> None:
    rows = [(f"c-{number % 500}", f"id-{number}") for number in range(30_000)]
    requests = requests_of(tmp_path, rows)
    assert replica_figures(requests, {}) is None
    tracemalloc.start()
    told = replica_figures(requests, {"e-1": {}, "e-2": {}})
    assert tracemalloc.get_traced_memory()[1] < 50e6, "not one figure for each pair of names"
    tracemalloc.stop()
    assert told is not None
    assert told["context_affinity"] == pytest.approx(1 / 60)
