"""Loads that nobody has sent: users who think, caps, conversations, ends; and their directory."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from test_twin import FRONT, STEP

from loadgen.cli.advise import advise_command
from loadgen.cli.simulate import simulate_command
from loadgen.errors import UsageError
from loadgen.targets.demo_model import build_model
from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.model import FrontTime, TwinModel
from loadgen.twin.predict import predict_load
from loadgen.twin.routing import Fleet
from loadgen.twin.sending import Pace, SendUnit
from loadgen.twin.serve import ServedRequest, TwinServer
from loadgen.twin.shape_of import CalibratedEngine, shape_of_run
from loadgen.workload.corpus import load_corpus

MODEL = TwinModel(STEP, FRONT, 0.02, 3, 0.01, {})
BATCHES = "batched --batches 3 --batch-size 4 -u 2 -r 2 --slo ttft_ms<=900"
SHAPE = EngineShape(usable_blocks=60, block_size=16, max_model_len=512)


class Load:
    """So many single requests of 100 tokens, each its own."""

    def __init__(self, pace: Pace, units: Sequence[SendUnit]) -> None:
        self.pace = pace
        self.units = units


def load(count: int, every_s: float = 0.0, session: str = "", **pace: object) -> Load:
    units = [
        SendUnit(
            number=n,
            requests=(TwinRequest(str(n), f"c{n}", (n + 1,) * 100, output_tokens=8),),
            offsets_s=(0.0,),
            due_s=every_s * n,
            session=session,
        )
        for n in range(count)
    ]
    return Load(Pace(**pace), units)  # type: ignore[arg-type]


def serve(offered: Load) -> tuple[list[ServedRequest], TwinServer]:
    served: list[ServedRequest] = []
    server = TwinServer(offered, SHAPE, STEP, FRONT, is_whole=False)
    server.serve_each(served.append)
    return served, server


def test_users_begin_think_and_end_as_told() -> None:
    served, _ = serve(load(100, starts_s=(0.0, 2.0), gaps_s=(1.0, 3.0), end_s=10.0))
    own = [each for each in served if each.user == 0]
    gaps = [later.sent_s - earlier.end_s for earlier, later in pairwise(own)]
    assert {round(gap, 6) for gap in gaps} <= {1.0, 3.0}
    assert min(each.sent_s for each in served if each.user == 1) == 2.0
    assert max(each.sent_s for each in served) < 10.0
    assert len(served) < 100


def test_a_cap_makes_requests_wait_and_some_are_never_sent() -> None:
    served, server = serve(
        load(50, every_s=0.01, is_open=True, starts_s=(0.0, 0.0), gaps_s=(0.0,), end_s=1.0)
    )
    busy = sorted([(s.sent_s, 1) for s in served] + [(s.end_s, -1) for s in served])
    most = now = 0
    for _, change in busy:
        now += change
        most = max(most, now)
    assert most == 2
    assert all(each.scheduled_s == 0.01 * int(each.request.name) for each in served)
    assert max(each.sent_s - each.scheduled_s for each in served) > 0.1
    assert len(served) + len(server.unsent) == 50
    assert server.unsent


def test_a_turn_of_a_conversation_waits_for_the_one_before_it() -> None:
    served, _ = serve(load(6, every_s=0.01, session="s", is_open=True))
    for earlier, later in pairwise(served):
        assert later.sent_s == pytest.approx(earlier.end_s)
        assert later.scheduled_s == later.sent_s


def test_no_user_waits_with_a_turn_that_cannot_go() -> None:
    talks = load(20, starts_s=(0.0, 0.0))
    units = [replace(each, session="ab"[each.number // 10]) for each in talks.units]
    served, _ = serve(Load(talks.pace, units))
    assert len(served) == 20
    assert [each.request.name for each in served if each.sent_s == 0.0] == ["0", "10"]
    for talk in ("a", "b"):
        own = [each for each in served if each.unit.session == talk]
        assert [each.unit.number for each in own] == sorted(each.unit.number for each in own)
        assert all(later.sent_s >= earlier.end_s for earlier, later in pairwise(own))


def test_turns_that_cannot_go_take_no_user_of_a_cap() -> None:
    talk = load(4, session="s", is_open=True, starts_s=(0.0, 0.0), end_s=0.3)
    single = replace(load(5).units[4], due_s=0.01)
    served, server = serve(Load(talk.pace, [*talk.units, single]))
    (alone,) = [each for each in served if each.unit.number == 4]
    assert alone.sent_s == 0.01
    assert len(served) + len(server.unsent) == 5


def test_what_is_under_way_too_long_after_the_end_is_cut_off() -> None:
    served, _ = serve(load(60, every_s=0.001, is_open=True, end_s=0.06, cut_s=0.4))
    cut = [each for each in served if each.is_cut]
    assert cut
    assert {each.end_s for each in cut} == {0.4}
    assert len(served) == 60


def test_what_is_kept_does_not_grow_with_the_run() -> None:
    for count in (20, 200):
        _, server = serve(load(count, every_s=0.05, is_open=True))
        (ledger,) = server.ledgers
        assert ledger.requests == count
        kept = (ledger.steps, ledger.arrived, ledger.admissions, ledger.waiting_ahead)
        assert not any(kept)
        assert not any((ledger.token_times_s, ledger.finished_s, ledger.cached_tokens))


def test_a_whole_ledger_says_the_same() -> None:
    offered = load(30, every_s=0.02, is_open=True)
    whole = TwinServer(offered, SHAPE, STEP, FRONT).serve()
    lean = predict_load(MODEL, offered, SHAPE)
    assert lean.ledger.computed_tokens == whole.ledger.computed_tokens
    assert sorted(lean.ttft_s) == sorted(each.ttft_s for each in whole.requests)
    assert lean.ledger.peak_running == max(len(step.scheduled) for step in whole.ledger.steps)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twin(tmp_path_factory.mktemp("twin"))


def write_twin(folder: Path) -> Path:
    texts = [document.text for document in load_corpus().documents]
    tokenizer = str(build_model(folder / "tiny", "tiny", texts))
    shape = EngineShape(usable_blocks=40, max_model_len=4096)
    engine = CalibratedEngine(shape, ("python", "-m", "vllm"), tokenizer, 1024)
    replace(MODEL, engine=engine.to_json()).write(folder / "twin.json")
    return folder / "twin.json"


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "requests.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_lengths_that_the_twin_was_not_made_from_are_told(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, made = TwinModel.read(twin), tmp_path / "twin.json"
    assert model.lengths == {}, "an older file"
    for lengths, count in (({"prompts": (1, 200), "replies": (1, 9999)}, 1), ({}, 0)):
        replace(model, lengths=lengths).write(made)
        assert simulate_command([*BATCHES.split(), "--twin", str(made)]) == 0
        said = capsys.readouterr().out
        assert said.count("tokens: outside what the twin was made from, 1 to 200\n") == count
        assert said.count("outside") == count
        words = [*BATCHES.split()[:-2], "--twin", str(made), "--slo", "ttft_ms.p95<=4000"]
        assert advise_command([*words, "--no-rates"]) == 0
        assert capsys.readouterr().out.count("outside") == count


def test_of_requests_without_an_end_it_is_told_how_long_they_had_waited(
    twin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "unordered -t 2s -u 64 -r 64 --output-tokens 200"
    assert simulate_command([*words.split(), "--twin", str(twin)]) == 0
    assert "never sent; the longest had waited " in capsys.readouterr().out
    assert simulate_command([*words.split(), "--twin", str(twin), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] > 0


def test_a_workload_without_a_run_gives_a_run_directory(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "a", tmp_path / "b"
    words = [
        "batched",
        "--batches",
        "3",
        "--batch-size",
        "4",
        "-u",
        "2",
        "-r",
        "2",
        "--slo",
        "ttft_ms<=900",
    ]
    more = ["--twin", str(twin), "--kv-tokens", "4096", "--target", "vllm-context"]
    assert simulate_command([*words, *more, "--out", str(out)]) == 0
    assert "12 requests of `kvswarm run batched" in capsys.readouterr().out
    assert simulate_command([*words, *more, "--out", str(again)]) == 0
    rows = rows_of(out)
    assert rows == rows_of(again)
    assert {row["slo_met"] for row in rows} <= {"true", "false"}
    assert {row["user"] for row in rows} <= {"BatchedUser-0", "BatchedUser-1"}
    assert shape_of_run(out).usable_blocks == 32
    facts = json.loads((out / "run.json").read_text())
    assert facts["options"]["batch_size"] == 4
    assert facts["cache_state"] == "simulated"
    assert json.loads((out / "summary.json").read_text())["batches"] == {"ok": 3}
    assert simulate_command([str(out), "--twin", str(twin)]) == 0, "it is a run like others"


def test_found_contexts_are_wrong_as_often_as_told(twin: Path, tmp_path: Path) -> None:
    out = tmp_path / "rag"
    words = ["rag", "--rag-wrong", "0.3", "-u", "4", "-r", "4", "-t", "40s", "--twin", str(twin)]
    assert simulate_command([*words, "--out", str(out)]) == 0
    rows = rows_of(out)
    wrong = [row for row in rows if row["rag_context_id"] != row["context_id"]]
    assert {row["label_correct"] for row in wrong} == {"false"}
    assert 0.1 < len(wrong) / len(rows) < 0.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("unordered -u 2", "would never end"),
        ("unordered -t 3s --labels kv", "--labels kv is not modelled"),
        ("unordered -t 3s --endpoint chat", "--endpoint is not modelled"),
        ("unordered -t 3s --gate errors<=1%", "--gate is not modelled"),
        ("unordered -t 3s --host http://h:1", "loads no host"),
        ("unordered -t 3s --model other", "--model is the engine's"),
        ("unordered -t 3s --processes 2", "--processes is not modelled"),
        ("unordered -t 3s --kv-codec raw", "--kv-codec is not modelled"),
        ("unordered -t 3s --l2-gb 2", "--l2-gb is not modelled"),
        ("unordered -t 3s --policy lpm", "means nothing to target vllm"),
        ("unordered -t 3s --target vllm-fp8", "--target vllm-fp8 is not modelled"),
        ("unordered -t 3s --contxts 3", "did you mean --contexts"),
        ("unordered -t 3s --context-tokens 9000", "give --context-tokens"),
        ("locustfiles/examples/load_shape.py", "load shape Morning is not modelled"),
        ("locustfiles/examples/mixed_users.py -t 3s", "Asker or Writer"),
        ("locustfiles/examples/own_client.py -t 3s", "has no users of kvswarm"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(twin: Path, words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate_command([*words.split(), "--twin", str(twin)])


def test_replies_that_a_run_would_give_up_are_no_simulation_of_it(
    twin: Path, tmp_path: Path
) -> None:
    words = ["unordered", "-t", "3s", "-u", "4", "-r", "4", "--twin", str(twin)]
    words += ["--out", str(tmp_path / "out"), "--timeout"]
    with pytest.raises(UsageError, match=r"--timeout 0.01 is not modelled, and \d+ requests took"):
        simulate_command([*words, "0.01"])
    assert not list((tmp_path / "out").iterdir())
    assert simulate_command([*words, "60"]) == 0


def test_a_timeout_that_nobody_gave_is_told_as_the_default(
    twin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(TwinModel.read(twin), front=FrontTime(0.003, 2.0e-6, 700.0))
    slow.write(tmp_path / "slow.json")
    words = ["batched", "--batches", "1", "-u", "1", "--twin", str(tmp_path / "slow.json")]
    with pytest.raises(UsageError, match=r"--timeout 600 \(the default\) is not modelled"):
        simulate_command(words)
    monkeypatch.setenv("LOCUST_TIMEOUT", "600")
    with pytest.raises(UsageError, match="--timeout 600 is not modelled"):
        simulate_command(words)


def test_an_older_twin_asks_for_a_new_one(twin: Path, tmp_path: Path) -> None:
    content = json.loads(twin.read_text())
    del content["engine"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="does not tell its engine"):
        simulate_command(["unordered", "-t", "3s", "--twin", str(tmp_path / "old.json")])


def test_what_a_reply_had_when_it_was_cut_off_is_known() -> None:
    (whole,), _ = serve(load(1, starts_s=(0.0,)))
    times_s = whole.tokens.times_s
    cut_s = (times_s[4] + times_s[5]) / 2 + FRONT.output_s
    (cut,), _ = serve(load(1, starts_s=(0.0,), end_s=100.0, cut_s=cut_s))
    assert cut.is_cut
    assert cut.tokens.times_s == times_s[: len(cut.tokens.times_s)]
    assert len(cut.tokens.times_s) in (5, 6)


def test_one_call_goes_to_one_engine() -> None:
    single = load(4, starts_s=(0.0,))
    requests = tuple(each.requests[0] for each in single.units)
    call = SendUnit(0, requests, (0.0,) * 4, is_one_call=True)
    for unit, places in ((call, {0}), (replace(call, is_one_call=False), {0, 1})):
        served: list[ServedRequest] = []
        server = TwinServer(
            Load(single.pace, [unit]), SHAPE, STEP, FRONT, is_whole=False, fleet=Fleet(2)
        )
        server.serve_each(served.append)
        assert {each.replica for each in served} == places


def test_batches_of_a_file_that_sends_none_are_no_end(twin: Path) -> None:
    with pytest.raises(UsageError, match="would never end"):
        simulate_command(["unordered", "-u", "2", "--batches", "3", "--twin", str(twin)])
