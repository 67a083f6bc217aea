"""Which engine of several answered what."""

from pathlib import Path

import pytest

from loadgen.runs.replicas import replica_figures
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.server_counters import Figures
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
