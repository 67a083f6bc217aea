"""What each idea of an engine buys, measured in process: cache, batch, blocks."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_llama import write_tiny_llama
from transformers import LlamaConfig, PreTrainedModel

from dashboards.ladder_page import Ladder, ladder_findings
from kv_policies.decode_profile import KernelRow, profile_step
from kv_policies.device import device_named
from kv_policies.generation import (
    BatchRow,
    GenerationPlan,
    GenerationRow,
    measure_batches,
    measure_generation,
)
from kv_policies.kv_allocation import (
    CapacityRow,
    KvBlockPool,
    KvNeed,
    OutOfKvMemory,
    growing,
    in_blocks,
    measure_allocation,
    measure_capacity,
    one_piece,
    workload,
)
from kv_policies.policy import PolicyError
from kv_policies.subject import loaded_model
from loadgen.cli.ladder import ladder_command
from loadgen.errors import UsageError

TOKEN_BYTES = 2 * 4 * 2 * 8 * 4
"""Keys and values of four layers with two KV heads of eight values in float32."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    folder = write_tiny_llama(tmp_path_factory.mktemp("model"))
    return loaded_model(folder, device_named("cpu"), torch.float32)


def need(*texts: int, budget_bytes: int = 400 * TOKEN_BYTES, piece: int = 100) -> KvNeed:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return KvNeed(config, texts, piece, budget_bytes, torch.float32, torch.device("cpu"))


PLAN = GenerationPlan((4, 12), (6, 9), (1, 3), batch_prompt=5, batch_generated=4, repeats=1)


def test_generation_has_every_length_with_the_cache_and_without(model: PreTrainedModel) -> None:
    rows = list(measure_generation(model, PLAN))
    assert [(row.has_cache, row.prompt_tokens, row.generated_tokens) for row in rows] == [
        (has_cache, prompt, generated)
        for has_cache in (True, False)
        for prompt, generated in ((6, 4), (6, 12), (9, 4))
    ]
    assert [row.kv_bytes for row in rows[:3]] == [n * TOKEN_BYTES for n in (6 + 3, 6 + 11, 9 + 3)]
    assert {row.kv_bytes for row in rows[3:]} == {0}
    for row in rows:
        assert 0 < row.step_ms < 1000 * row.seconds
    assert rows[0].seconds < rows[1].seconds


def test_a_batch_holds_as_many_bytes_as_texts(model: PreTrainedModel) -> None:
    one, three = measure_batches(model, PLAN)
    assert (one.batch, three.batch) == (1, 3)
    assert 3 * one.kv_bytes == three.kv_bytes == 3 * (5 + 3) * TOKEN_BYTES
    assert three.tokens_per_s == pytest.approx(3 * 4 / three.seconds)


def test_a_cached_step_multiplies_single_rows(model: PreTrainedModel) -> None:
    rows = list(profile_step(model, 40))
    for has_cache, tokens in ((True, 1), (False, 40)):
        own = [row for row in rows if row.has_cache is has_cache]
        assert sum(row.share for row in own) == pytest.approx(1.0)
        products = {row.rows: row for row in own if row.kernel == "mm"}
        assert max(rows for rows in products if rows) == tokens
        assert own == sorted(own, key=lambda row: -row.ms)
    many, single = (
        next(row for row in rows if row.kernel == "mm" and row.rows == n) for n in (40, 1)
    )
    assert many.flops_per_byte is not None
    assert single.flops_per_byte is not None
    assert many.flops_per_byte > 8 * single.flops_per_byte
    assert single.flops_per_byte < 1
    with pytest.raises(PolicyError, match="profile tokens 1: give 2 or more"):
        next(profile_step(model, 1))


def test_bytes_are_those_of_tensors_and_blocks() -> None:
    texts = need(10, 40)
    assert one_piece(texts, 2) == (200 * TOKEN_BYTES, 200 * TOKEN_BYTES)
    held, peak = growing(texts, 2)
    assert held == 80 * TOKEN_BYTES, "both are as long as the longest"
    # While the last layer's values grow, their old copy is there, too.
    assert peak == held + 2 * 39 * TOKEN_BYTES // 8
    assert in_blocks(texts, 16, 2) == ((16 + 48) * TOKEN_BYTES, (16 + 48) * TOKEN_BYTES)
    assert in_blocks(texts, 1, 2)[0] == 50 * TOKEN_BYTES


def test_capacity_is_where_the_budget_is_used_up() -> None:
    texts = need(10, 40)
    rows = {(row.way, row.block_tokens): row for row in measure_capacity(texts, [1, 16], 8)}
    assert rows["one piece", 0].batch == 4
    assert rows["growing", 0].batch == 8, "nine of 40 tokens leave no room for the copy"
    # 400 blocks of a token: eight pairs of 50, and none is left.
    assert rows["blocks", 1].batch == 16
    # 25 blocks of 16: six pairs of four, and one of the shorter.
    assert rows["blocks", 16].batch == 13
    growing(texts, 8)
    with pytest.raises(OutOfKvMemory):
        growing(texts, 9)


def test_blocks_take_less_from_a_batch_on() -> None:
    """Alone a text of 17 tokens takes two blocks; beside one of 65 it is padded."""
    rows = {row.way: row for row in measure_capacity(need(17, 65), [16], 4)}
    assert rows["blocks"].crossover == 2
    assert rows["growing"].crossover is None
    alike = list(measure_capacity(need(17), [16], 4))
    assert alike[-1].crossover is None, "texts of one length need no padding"


def test_what_does_not_fit_is_left_out() -> None:
    rows = list(measure_allocation(need(10, 40), [1, 5, 30], [16]))
    held = {(row.batch, row.way): row.kv_bytes for row in rows}
    assert held[5, "one piece"] is None
    assert held[30, "blocks"] is None
    assert held[5, "blocks"] == (16 + 48 + 16 + 48 + 16) * TOKEN_BYTES
    assert rows[0].used_bytes == 10 * TOKEN_BYTES


def test_a_pool_gives_no_block_twice() -> None:
    pool = KvBlockPool(need(10, budget_bytes=5 * 16 * TOKEN_BYTES), 16)
    pool.add(33)
    pool.add(20)
    taken = [block for table in pool.tables for block in table]
    assert sorted(taken) == list(range(5))
    with pytest.raises(OutOfKvMemory):
        pool.add(1)


def test_replies_are_of_lengths_nobody_knows() -> None:
    texts = workload([100, 100, 200])
    assert texts == workload([100, 100, 200])
    assert texts[0] != texts[1]
    assert all(116 <= each <= 456 for each in texts)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(PolicyError, match="one length of each kind"):
        replace(PLAN, prompts=())
    with pytest.raises(PolicyError, match="repeats 0: give 1 or more"):
        replace(PLAN, repeats=0)
    with pytest.raises(PolicyError, match="the longest has 101"):
        need(101)
    with pytest.raises(PolicyError, match="holds no token"):
        need(10, budget_bytes=9)
    with pytest.raises(PolicyError, match="a block of 0: give 1 or more"):
        list(measure_allocation(need(10), [1], [0]))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="holds no model"):
        loaded_model(tmp_path, device_named("cpu"))


def test_a_sentence_for_each_table() -> None:
    cached, without = (
        [
            GenerationRow(has, 64, 200, 2 * n, 10.0 * n, 100),
            GenerationRow(has, 64, 500, 6 * n * n, 9, 1),
        ]
        for has, n in ((True, 1.0), (False, 3.0))
    )
    ladder = Ladder(
        generation=[*cached, *without],
        batches=[BatchRow(1, 64, 10, 1.0, 10.0, 5, 6), BatchRow(4, 64, 10, 2.0, 15.0, 10**6, None)],
        allocation=[],
        capacity=[
            CapacityRow("one piece", 0, 3, None),
            CapacityRow("growing", 0, 9, None),
            CapacityRow("blocks", 16, 12, 2),
        ],
        kernels=[
            KernelRow(True, 64, "mm", 1, 1.0, 0.5, 100, 200),
            KernelRow(True, 64, "cat", None, 1.0, 0.5, 0, 0),
            KernelRow(False, 64, "mm", 64, 8.0, 1.0, 600, 200),
        ],
        piece_tokens=4096,
        budget_bytes=10**9,
    )
    said = list(ladder_findings(ladder).values())
    assert "200 tokens after a prompt of 64 take 3.0 times as long" in said[0]
    assert "and 500 tokens after a prompt of 64 take 9.0 times as long." in said[0]
    assert "A batch of 4 makes 2.0 times the tokens a second" in said[1]
    assert "holds a batch of 3, growing tensors 9, blocks of 16 tokens 12" in said[2]
    assert "from a batch of 2 on" in said[2]
    assert "100 % of its time in `mm` over matrices of 64 rows, 3 operations a byte" in said[3]
    assert "50 % in `mm` over vectors (one row), 0.5 operations" in said[3]
    assert "4.0 times faster" in said[3]


def test_the_command_writes_a_page_with_every_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_llama(folder)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/one.md").write_text("a text of few words. " * 9)
    lengths = ["--generated", "4", "9", "--prompts", "8", "16", "--batches", "1", "2"]
    words = [*lengths, "--repeats", "1", "--profile-tokens", "24", "--budget-gb", "0.0005"]
    places = ["--model", str(folder), "--corpus", str(tmp_path / "texts")]
    assert ladder_command([*words, *places, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/ladder.md").read_text()
    sentences = capsys.readouterr().out.splitlines()[:4]
    assert all(f"**{each}**" in page for each in sentences)
    assert page.count("\nOn ") == 5, "each table says the machine"
    assert (tmp_path / "out/ladder.svg").stat().st_size > 1000
    with (tmp_path / "out/ladder.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["table"] for row in rows} == {
        *("generation", "batches", "allocation", "capacity", "kernels")
    }
    held = [row for row in rows if row["figure"] == "kv_bytes" and row["table"] == "generation"]
    assert {row["way"] for row in held} == {"cache", "no cache"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget-gb", "0"], "give more than 0"),
        (["--budget-gb", "nan"], "give more than 0"),
        (["--budget-gb", "1e-9"], "holds no token"),
        (["--budget-gb", "1e6"], "GB are free here, give less"),
        (["--block", "0"], "a block of 0: give 1 or more"),
        (["--block", "9" * 30], "9: give 1,000,000 or less"),
        (["--generated", "0"], "a generated length of 0: give 2 or more"),
        (["--profile-tokens", "0"], "--profile-tokens 0: give 2 or more"),
        (["--profile-tokens", "1"], "--profile-tokens 1: give 2 or more"),
        (["--repeats", "9" * 30], "9: give 1,000,000 or less"),
        (["--out", "/dev/null/here"], "--out /dev/null/here cannot be written"),
        (["--model", "."], "holds no model"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_llama(folder)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/one.md").write_text("a text of few words")
    places = ["--model", str(folder), "--corpus", str(tmp_path / "texts"), "--out", str(tmp_path)]
    with pytest.raises(UsageError, match=said):
        ladder_command([*places, *words])
