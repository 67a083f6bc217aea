"""Batched runs: batches.csv, the same work whoever sends it, an end by number, cut-offs."""

import csv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_process import HostProcess, Ran, host_process, run_swarm, run_until

from loadgen.record import BATCH_COLUMNS

WORK = ("--batches", 7, "--batch-size", 5, "--output-tokens", 4, "--seed", 3, "--contexts", 4)


@pytest.fixture(scope="module")
def vllm() -> Iterator[HostProcess]:
    with host_process("vllm") as running:
        yield running


def run_batched(host: HostProcess, out: Path, *more: object) -> Ran:
    model = () if "--model" in more else ("--model", "normal")
    return run_swarm(host.url, out, *model, *more, file="batched")


def work_of(ran: Ran) -> dict[str, tuple[str, str, str]]:
    return {
        row["request_id"]: (row["batch_id"], row["context_id"], row["question_id"])
        for row in ran.rows
    }


@pytest.fixture(scope="module")
def ran(vllm: HostProcess, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_batched(vllm, tmp_path_factory.mktemp("runs") / "run", *WORK, "-u", 2, "-r", 2)


def test_a_run_of_so_many_batches_ends_by_itself(ran: Ran) -> None:
    assert ran.code == 0, ran.output
    assert "Traceback" not in ran.output
    assert sorted(int(row["request_id"]) for row in ran.rows) == list(range(35))
    assert {int(row["batch_id"]) for row in ran.rows} == set(range(7))
    assert all(int(row["batch_id"]) == int(row["request_id"]) // 5 for row in ran.rows)


def test_has_a_row_per_batch(ran: Ran) -> None:
    batches = ran.csv("batches.csv")
    assert tuple(batches[0]) == BATCH_COLUMNS
    assert sorted(int(row["batch_id"]) for row in batches) == list(range(7))
    for batch in batches:
        members = [row for row in ran.rows if row["batch_id"] == batch["batch_id"]]
        assert (batch["outcome"], batch["requests"], batch["ok"]) == ("ok", "5", "5")
        assert int(batch["contexts"]) == len({row["context_id"] for row in members})
        assert batch["sent_s"] == min((row["sent_s"] for row in members), key=float)
        assert batch["last_reply_s"] == max((row["end_s"] for row in members), key=float)
        makespan_s = float(batch["last_reply_s"]) - float(batch["scheduled_s"])
        assert float(batch["makespan_s"]) == pytest.approx(makespan_s, abs=2e-6)


def test_the_summary_has_the_makespan(ran: Ran) -> None:
    summary = ran.json("summary.json")
    makespans = [float(row["makespan_s"]) for row in ran.csv("batches.csv")]
    assert summary["metrics"]["makespan_s"]["count"] == 7
    assert summary["metrics"]["makespan_s"]["max"] == pytest.approx(max(makespans), abs=1e-5)
    assert summary["batches"] == {"ok": 7}
    assert "makespan_s" in ran.output
    with (ran.out / "locust_stats.csv").open(newline="") as file:
        rows = {row["Name"]: int(row["Request Count"]) for row in csv.DictReader(file)}
    assert rows["Batch makespan (s)"] == 7
    assert rows["Aggregated"] == 35


def test_a_vllm_host_is_told_the_context_of_each_request(ran: Ran, vllm: HostProcess) -> None:
    assert all(row["label"] == row["context_id"] for row in ran.rows)
    sent = [body["vllm_xargs"]["context"] for body in vllm.bodies()[:35]]
    assert sorted(sent) == sorted(row["label"] for row in ran.rows)


def test_workers_together_send_the_same_batches(
    ran: Ran, host: HostProcess, tmp_path: Path
) -> None:
    more = run_batched(host, tmp_path / "run", *WORK, "-u", 3, "-r", 3, "--processes", 2)
    assert more.code == 0, more.output
    assert work_of(more) == work_of(ran)
    batches = more.csv("batches.csv")
    assert {(int(row["batch_id"]) % 2, row["worker"]) for row in batches} == {(0, "0"), (1, "1")}
    assert more.json("summary.json")["metrics"]["makespan_s"]["count"] == 7
    assert {row["label"] for row in more.rows} == {""}, "only vLLM is told"
    assert all("vllm_xargs" not in body for body in host.bodies())


def test_a_list_is_one_call_per_batch(ran: Ran, vllm: HostProcess, tmp_path: Path) -> None:
    calls = len(vllm.bodies())
    listed = run_batched(
        vllm, tmp_path / "run", *WORK, "-u", 1, "--batch-as", "list", "--order", "grouped"
    )
    assert listed.code == 0, listed.output
    assert work_of(listed) == work_of(ran)
    assert len(vllm.bodies()) - calls == 7
    for name in ("prompt_tokens", "cached_tokens", "output_tokens", "tpot_ms"):
        assert {row[name] for row in listed.rows} == {""}, "the host counts the call alone"
    assert all(row["ttft_ms"] and row["e2e_ms"] for row in listed.rows)
    batches = listed.csv("batches.csv")
    assert {(row["call_prompt_tokens"], row["call_output_tokens"]) for row in batches} == {
        ("500", "20")
    }
    summary = listed.json("summary.json")
    rate = summary["output_tokens_per_s"]
    assert rate * summary["duration_s"] == pytest.approx(7 * 20), "the total is right all the same"
    assert summary["metrics"]["output_tokens"]["count"] == 0


def test_grouped_sends_one_context_after_the_other(host: HostProcess, tmp_path: Path) -> None:
    grouped = run_batched(
        host, tmp_path / "run", *WORK, "-u", 1, "--batch-as", "list", "--order", "grouped"
    )
    assert grouped.code == 0, grouped.output
    prompts = host.prompts()
    for start in range(0, 35, 5):
        contexts = [prompt.rpartition("\n\nQuestion: ")[0] for prompt in prompts[start : start + 5]]
        changes = sum(one != other for one, other in pairwise(contexts))
        assert changes == len(set(contexts)) - 1


def test_in_an_open_loop_batches_are_due(host: HostProcess, tmp_path: Path) -> None:
    paced = run_batched(
        *(host, tmp_path / "run", *WORK, "-u", 0, "--arrivals", "constant", "--rate", 10),
        *("--processes", 2),
    )
    assert paced.code == 0, paced.output
    batches = paced.csv("batches.csv")
    assert len(batches) == 7
    for row in batches:
        assert float(row["scheduled_s"]) == pytest.approx(int(row["batch_id"]) / 10, abs=2e-3)


@pytest.mark.parametrize("form", ["requests", "list"])
@pytest.mark.parametrize("processes", [(), ("--processes", 2)])
def test_a_batch_that_is_cut_off_has_no_makespan(
    host: HostProcess, tmp_path: Path, form: str, processes: tuple[Any, ...]
) -> None:
    (cut,) = run_until(
        lambda: len(host.prompts()) >= 8,
        host.url,
        [tmp_path / "run"],
        *("--model", "slow", "-u", 2, "-r", 2, "--batch-size", 4),
        *("--batch-as", form, *processes),
        file="batched",
    )
    assert "Traceback" not in cut.output
    assert len(cut.rows) == len(host.prompts())
    assert {row["outcome"] for row in cut.rows} == {"cancelled"}
    batches = cut.csv("batches.csv")
    assert {(row["outcome"], row["makespan_s"]) for row in batches} == {("partial", "")}
    assert sum(int(row["requests"]) for row in batches) == len(cut.rows)
    assert cut.json("summary.json")["metrics"]["makespan_s"]["count"] == 0
    assert cut.json("summary.json")["batches"] == {"partial": len(batches)}


def test_what_the_drain_leaves_is_partial(host: HostProcess, tmp_path: Path) -> None:
    left = run_batched(
        *(host, tmp_path / "run", "--model", "endless", "-u", 2, "-r", 2, "--batch-size", 3),
        *("-t", "2s", "--drain", "0.5"),
    )
    assert [row["outcome"] for row in left.rows] == ["cancelled"] * 6
    assert all(row["first_token_s"] and row["end_s"] for row in left.rows)
    batches = left.csv("batches.csv")
    assert [(row["outcome"], row["makespan_s"]) for row in batches] == [("partial", "")] * 2


def test_some_failures_make_a_batch_partial(host: HostProcess, tmp_path: Path) -> None:
    ran = run_batched(host, tmp_path / "run", *WORK, "-u", 1, "--model", "flaky")
    assert ran.code == 1
    batches = ran.csv("batches.csv")
    assert {row["outcome"] for row in batches} <= {"ok", "partial"}
    partial = [row for row in batches if row["outcome"] == "partial"]
    assert partial
    assert {row["makespan_s"] for row in partial} == {""}
    assert len(ran.rows) == 35


def test_batches_mean_nothing_to_single_requests(host: HostProcess, tmp_path: Path) -> None:
    more = ("--batches", 1, "--batch-as", "list", "--order", "grouped", "--endpoint", "completions")
    ran = run_swarm(
        *(host.url, tmp_path / "run", "--model", "normal", "-u", 2, "-r", 2, "-t", "2s", *more),
        *("--output-tokens", "2-4"),
    )
    assert ran.code == 0, ran.output
    assert len(ran.rows) > 2
    assert {(row["batch_id"], row["label"]) for row in ran.rows} == {("", "")}
    assert not (ran.out / "batches.csv").exists()
    assert ran.json("summary.json")["metrics"]["makespan_s"]["count"] == 0


WRONG = {
    "a list in a chat": (("--batch-as", "list", "--endpoint", "chat"), "--endpoint completions"),
    "own label": (("--extra-body", '{"vllm_xargs": {"context": "x"}}'), "--labels none"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(vllm: HostProcess, tmp_path: Path, name: str) -> None:
    options, said = WRONG[name]
    ran = run_batched(vllm, tmp_path / "run", "-t", "1s", *options)
    assert ran.code == 2, ran.output
    lines = [line for line in ran.output.splitlines() if line.startswith("kvswarm: ")]
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "run").exists()


def test_users_of_batches_and_of_single_requests_do_not_mix(
    host: HostProcess, tmp_path: Path
) -> None:
    file = tmp_path / "both.py"
    file.write_text(
        "from locustfiles.batched import BatchedUser\n"
        "from locustfiles.unordered import UnorderedUser\n"
    )
    ran = run_swarm(host.url, tmp_path / "run", "--model", "normal", "-t", "1s", file=str(file))
    assert ran.code == 2, ran.output
    assert "name the user classes" in ran.output
