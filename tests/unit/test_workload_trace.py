"""Traces of each form: what is read, what is refused, and what is sent for them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.targets.demo_model import write_tokenizer
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens, TokenizerTokens, Tokens
from loadgen.workload.trace import reader
from loadgen.workload.trace.reader import TraceChanges, TraceEntry, read_trace
from loadgen.workload.trace.selection import Selection, survey
from loadgen.workload.trace.workload import TracePacer, TraceWorkload

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "replay.md"
MOONCAKE = [
    {"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 8]},
    {"timestamp": 1000, "input_length": 1030, "output_length": 9, "hash_ids": [0, 7, 9]},
    {"timestamp": 4500, "input_length": 600, "output_length": 2, "hash_ids": [0, 12]},
    {"timestamp": 4000, "input_length": 2000, "output_length": 1, "hash_ids": [0]},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:01:00.009930+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "Be brief."},
            {"from": "human", "value": "What is a block?"},
            {"from": "gpt", "value": "Some tokens' keys and values."},
            {"from": "human", "value": "How many?"},
            {"from": "gpt", "value": "Often 16."},
            {"from": "human", "value": "And then nobody answered."},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "Unasked."}]},
    {"conversations": [{"from": "user", "value": "Hi [1, {2"}, {"from": "gpt", "value": "Hi!"}]},
]


def jsonl(items: list[dict[str, object]]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    return kept(tmp_path, jsonl(MOONCAKE))


def kept(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def entries(folder: Path, text: str) -> list[TraceEntry]:
    return list(read_trace(kept(folder, text)))


def test_mooncake_has_times_lengths_and_shared_blocks(mooncake: Path) -> None:
    first, *_, last = read_trace(mooncake)
    assert (first.at_s, first.input_tokens, first.output_tokens) == (1.0, 1100, 5)
    assert (first.block_ids, first.block_tokens) == ((0, 7, 8), 512)
    assert last.block_ids == (0,)


def test_the_lines_that_the_guide_writes_are_a_trace(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    names: dict[str, Any] = {}
    exec(example, names)
    shared, reply = [*range(512)], [7, 7]
    prompts = [shared, [*shared, 1], [*shared, 2], [5]]
    lines = [names["trace_line"](1000 * n, each, reply) for n, each in enumerate(prompts)]
    alone, one, other, short = entries(tmp_path, "\n".join(lines))
    assert [each.input_tokens for each in (alone, one, other, short)] == [512, 513, 513, 1]
    assert (other.at_s, other.output_tokens) == (2.0, 2)
    assert alone.block_ids == one.block_ids[:1] == other.block_ids[:1]
    assert len({alone.block_ids[0], one.block_ids[1], other.block_ids[1], *short.block_ids}) == 4


@pytest.mark.parametrize(
    ("text", "gap_s", "lengths"),
    [
        (AZURE, 4.314579, [(374, 44), (396, 109)]),
        (AZURE_2024, 60.0, [(2162, 5), (2399, 6)]),
        ("\ufeff" + BURSTGPT, 113.0, [(472, 18), (417, 276)]),
        ("\n \n" + BURSTGPT, 113.0, [(472, 18), (417, 276)]),
    ],
)
def test_csvs_have_times_and_lengths_and_failed_requests_are_left_out(
    tmp_path: Path, text: str, gap_s: float, lengths: list[tuple[int, int]]
) -> None:
    first, second = found = entries(tmp_path, text)
    assert [(each.input_tokens, each.output_tokens) for each in found] == lengths
    assert first.at_s is not None
    assert second.at_s is not None
    assert second.at_s - first.at_s == pytest.approx(gap_s, abs=1e-5)


def test_blank_lines_before_the_first_entry_are_passed_over(tmp_path: Path) -> None:
    assert [each.input_tokens for each in entries(tmp_path, "\n \n" + jsonl(MOONCAKE[:1]))] == [
        1100
    ]


@pytest.mark.parametrize("text", [json.dumps(SHAREGPT, indent=1), jsonl(SHAREGPT)])
def test_conversations_grow_by_their_own_replies(tmp_path: Path, text: str) -> None:
    first, second, third = entries(tmp_path, text)
    assert first.prompt == "Be brief.\n\nWhat is a block?"
    assert second.prompt == f"{first.prompt}\n\nSome tokens' keys and values.\n\nHow many?"
    assert (second.session_id, second.reply) == ("a", "Often 16.")
    assert (third.session_id, third.prompt) == ("conversation-3", "Hi [1, {2")


def test_a_last_question_without_a_reply_is_left_out_and_counted(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "1."}]
    path = tmp_path / "trace"
    path.write_text(json.dumps([{"conversations": [*talk, {"from": "human", "value": "Two?"}]}]))
    changes = TraceChanges()
    (only,) = read_trace(path, changes)
    assert (only.prompt, changes.empty) == ("One?", 1)


@pytest.mark.parametrize(
    ("text", "telling"),
    [
        ("", "is no trace"),
        ("a,b\n1,2\n", "is no trace"),
        (jsonl(MOONCAKE[:1]) + "{", "line 2: not a JSON object"),
        (jsonl([{"input_length": 0, "output_length": 1}]), "line 1: input_length is 0"),
        (jsonl([{"input_length": 5}]), "line 1: output_length is missing"),
        (jsonl([{"input_length": "x", "output_length": 1}]), "line 1: input_length is 'x'"),
        (jsonl([{"input_length": 5, "output_length": True}]), "output_length is True"),
        (jsonl([{**MOONCAKE[0], "timestamp": -1}]), "line 1: timestamp is -1"),
        (jsonl([{**MOONCAKE[0], "hash_ids": [1, 2, 3, 4]}]), "hash_ids names 4 blocks"),
        (jsonl([{**MOONCAKE[0], "hash_ids": [1.5]}]), "hash_ids is [1.5]: "),
        (jsonl([{**MOONCAKE[0], "hash_ids": [2**64]}]), "whole numbers of 64 bits"),
        (jsonl([{**MOONCAKE[0], "hash_ids": [-(2**64)]}]), "whole numbers of 64 bits"),
        (" \n" + AZURE + "yesterday,1,1\n", "line 5: TIMESTAMP is 'yesterday'"),
        (AZURE + "yesterday,1,1\n", "line 4: TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:15:51,1.5,1\n", "line 4: ContextTokens is '1.5'"),
        (BURSTGPT + "inf,GPT-4,1,1,2,API log\n", "line 5: Timestamp is 'inf'"),
        (BURSTGPT + "7\n", "line 5: Request tokens is missing"),
        (BURSTGPT + "7,GPT-4,inf,1,2,API log\n", "line 5: Request tokens is 'inf'"),
        (BURSTGPT + f"7,GPT-4,{'9' * 131_073},1,2,API log\n", "field larger than field limit"),
        ("ContextTokens,GeneratedTokens,TIMESTAMP\n5,1\n", "line 2: TIMESTAMP is None"),
        (jsonl([{"input_length": float("nan"), "output_length": 1}]), "input_length is nan"),
        (jsonl([{**MOONCAKE[0], "timestamp": 10**400}]), "line 1: timestamp is 1000"),
        (f'{{"input_length": 1, "x": {"[" * 100_000}', "line 1: not a JSON object"),
        (f'[{{"id": {"[" * 100_000}', "conversation 1: nested too deep"),
        ("[1]", "conversation 1: not an object"),
        ('[{"id": "a"}]', "conversation 1: there is no list"),
        (json.dumps(SHAREGPT)[:-9], "conversation 3: not JSON"),
        ('[{"conversations": [{"from": "human"}]}]', "conversation 1: a turn is"),
    ],
)
def test_a_broken_trace_names_the_place(tmp_path: Path, text: str, telling: str) -> None:
    with pytest.raises(UsageError) as error:
        entries(tmp_path, text)
    assert telling in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "trace"))


def test_a_huge_conversation_is_not_decoded_again_for_each_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoded(monkeypatch)
    turns = [{"from": "human", "value": "a b " * 50_000}, {"from": "gpt", "value": "x"}]
    text = json.dumps([{"conversations": turns * 3}])
    assert len(entries(tmp_path, text)) == 3
    assert sum(decoded) < 6 * len(text)


def test_what_no_more_text_can_mend_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = count_decoded(monkeypatch)
    broken = '[{"conversations": [}, '
    with pytest.raises(UsageError, match="conversation 1: not JSON"):
        entries(tmp_path, broken + jsonl(SHAREGPT) * 10_000)
    assert sum(decoded) <= 2 * PIECE


PIECE = 1000


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters that each try to read a conversation had before it, in pieces of a file."""
    decoded: list[int] = []

    class Counting(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            decoded.append(len(s) - idx)
            return super().raw_decode(s, idx)

    monkeypatch.setattr(reader.json, "JSONDecoder", Counting)
    monkeypatch.setattr(reader, "READ_CHARACTERS", PIECE)
    return decoded


def test_texts_and_names_can_be_sent_whatever_json_allows(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "?\ud83d"}, {"from": "gpt", "value": "x" * 200_000}]
    one_line = json.dumps([{"id": "\ud800", "conversations": turns}])
    for text in (one_line, jsonl([{**MOONCAKE[0], "session_id": "\ud800"}])):
        entry = entries(tmp_path, f"\ufeff{text}")[0]
        assert (entry.session_id, entry.prompt.encode()) in (("?", b"??"), ("?", b""))
    numbered = entries(tmp_path, jsonl([{**MOONCAKE[0], "session_id": 0}]))
    assert numbered[0].session_id == "0"


def test_a_missing_or_binary_trace_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(read_trace(tmp_path / "nowhere"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe is a pipe, and a trace is read several times: give"):
        list(read_trace(tmp_path / "pipe"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not UTF-8"):
        list(read_trace(tmp_path / "binary"))


def test_a_selection_scales_filters_and_never_goes_back_in_time(mooncake: Path) -> None:
    def times(**changes: float) -> list[float | None]:
        return [each.at_s for each in Selection(mooncake, **changes).entries()]

    assert times() == [0.0, 0.0, 3.5, 3.5]
    assert times(speed=7.0) == [0.0, 0.0, 0.5, 0.5]
    assert times(limit=1) == [0.0]
    assert times(most_tokens=1100) == [0.0, 2.5 + 1.0]
    (half, *_) = Selection(mooncake, length_scale=0.5).entries()
    assert (half.input_tokens, half.output_tokens, half.block_tokens) == (550, 2, 256)


def test_no_text_is_made_that_fits_in_no_memory(mooncake: Path) -> None:
    with pytest.raises(UsageError, match=r"tokens: give --trace-max-tokens"):
        survey(Selection(mooncake, length_scale=1e9))


def test_a_survey_finds_what_everybody_shares(mooncake: Path) -> None:
    found = survey(Selection(mooncake))
    assert (found.entries, found.has_times, found.duration_s) == (4, True, 3.5)
    assert found.longest_tokens == 2001
    assert found.common == {0}
    with pytest.raises(UsageError, match="leaves no request"):
        survey(Selection(mooncake, most_tokens=10))


def workload(path: Path, tokens: Tokens, worker: int = 0, workers: int = 1) -> TraceWorkload:
    selection = Selection(path)
    common = survey(selection).common
    return TraceWorkload(
        load_corpus(), selection, common, tokens, seed=3, worker_index=worker, workers=workers
    )


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TokenizerTokens:
    texts = [document.text for document in load_corpus().documents]
    return TokenizerTokens(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), texts, 4096))


def test_prompts_have_exactly_the_length_of_the_trace(
    mooncake: Path, tokenizer: TokenizerTokens
) -> None:
    lengths = [tokenizer.count(each.prompt) for each in workload(mooncake, tokenizer).requests()]
    assert lengths == [1100, 1030, 600, 2000]


def test_equal_blocks_are_equal_bytes_and_nothing_else_is(
    mooncake: Path, tokenizer: TokenizerTokens
) -> None:
    first, second, third, fourth = workload(mooncake, tokenizer).requests()
    shared = first.prompt[: len(common(first.prompt, second.prompt))]
    assert 1024 <= tokenizer.count(shared) < 1030
    assert tokenizer.count(common(first.prompt, third.prompt)) in range(512, 516)
    assert tokenizer.count(common(third.prompt, fourth.prompt)) in range(512, 516)
    assert [each.context_id for each in (first, second, third, fourth)] == [
        *("block-7", "block-7", "block-12", "")
    ]


def common(one: str, other: str) -> str:
    end = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
    return one[:end]


def test_workers_share_a_trace_without_gap_or_overlap(mooncake: Path) -> None:
    whole = list(workload(mooncake, EstimatedTokens()).requests())
    parts = [list(workload(mooncake, EstimatedTokens(), at, 3).requests()) for at in range(3)]
    assert sorted((r for part in parts for r in part), key=lambda r: r.index) == whole
    assert [len(part) for part in parts] == [2, 1, 1]


def test_the_pacer_has_the_times_of_the_trace(mooncake: Path) -> None:
    pacer = TracePacer(Selection(mooncake))
    assert [pacer.next_s() for _ in range(6)] == [0.0, 0.0, 3.5, 3.5, 3.5, 3.5]


def test_replies_with_texts_are_measured(tmp_path: Path, tokenizer: TokenizerTokens) -> None:
    path = kept(tmp_path, jsonl(SHAREGPT))
    first, *_ = workload(path, tokenizer).requests()
    assert first.max_tokens == tokenizer.count("Some tokens' keys and values.")
    assert first.context_id == "a"
