"""Attention three ways with one result; small models of fewer KV heads, trained and averaged."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dashboards.attention_pages import attention_findings, gqa_findings
from kv_policies.exact_attention import (
    KERNELS,
    AttentionRow,
    blockwise,
    measure_attention,
    moved_bytes,
    naive,
    reserved_tokens,
)
from kv_policies.gqa_training import GqaPlan, GqaResult, train_variants
from kv_policies.policy import ModelShape, PolicyError
from kv_policies.toy_transformer import ToyCache, ToyShape, ToyTransformer, averaged_heads
from loadgen.cli.policies import policies_command
from loadgen.errors import UsageError

SMALL = ToyShape(kv_heads=4, heads=4, layers=2, width=32)
TEXT = b"the cat sat on the mat, and the dog sat on the log; " * 60
PLAN = GqaPlan(steps=30, batch=4, tokens=32, seeds=1, rate=3e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tokens", [2, 127, 128, 129, 300])
def test_all_ways_give_one_result(kernel: str, tokens: int) -> None:
    torch.manual_seed(tokens)
    query, key, value = (torch.randn(1, 3, tokens, 16) for _ in range(3))
    torch.testing.assert_close(KERNELS[kernel](query, key, value), naive(query, key, value))


@pytest.mark.parametrize("tile", [1, 7, 64])
def test_tiles_of_any_size_and_logits_that_grow(tile: int) -> None:
    """A running maximum that is not kept up overflows, or forgets."""
    query = 40 * torch.randn(1, 1, 50, 8)
    key = torch.randn(1, 1, 50, 8) * torch.linspace(0.1, 10, 50)[:, None]
    value = torch.randn(1, 1, 50, 8)
    found = blockwise(query, key, value, tile)
    torch.testing.assert_close(found, naive(query, key, value), rtol=1e-4, atol=1e-4)


def test_rows_have_all_kernels_at_all_lengths() -> None:
    rows = list(measure_attention(ModelShape(1, 2, 16), 2, [64, 256], repeats=1))
    assert [(row.tokens, row.kernel) for row in rows] == [
        (tokens, kernel) for tokens in (64, 256) for kernel in KERNELS
    ]
    assert all(row.ms > 0 and row.error < 1e-4 for row in rows)
    with pytest.raises(PolicyError, match="give 2 or more"):
        list(measure_attention(ModelShape(1, 2, 16), 2, [1]))


def test_tiles_move_far_fewer_bytes_and_grow_slower() -> None:
    few, many = (moved_bytes("fused", n, 9, 64, 2) for n in (1024, 4096))
    whole = moved_bytes("naive", 4096, 9, 64, 2)
    assert whole == 4 * 9 * 4096 * 64 * 2 + 4 * 9 * 4096 * 4096 * 2
    assert few < many < whole / 5
    short = moved_bytes("fused", 2, 9, 64, 4)
    assert short == 4 * 9 * 2 * 64 * 4 < moved_bytes("naive", 2, 9, 64, 4), "a part of a tile"


def test_blocks_reserve_what_is_used() -> None:
    assert reserved_tokens([1, 16, 17], 100, 16) == (300, 16 + 16 + 32)
    with pytest.raises(PolicyError, match="1 to 100 tokens"):
        reserved_tokens([101], 100, 16)


def test_sentences_follow_the_figures() -> None:
    rows = [
        AttentionRow(kernel, 1000, ms, peak, moved, 1e-6)
        for kernel, ms, peak, moved in (
            ("naive", 30.0, 600, 80),
            ("in blocks", 20.0, 150, 10),
            ("fused", 10.0, 100, 10),
        )
    ]
    said = list(attention_findings(rows, {16: (1000, 250)}))
    assert "takes 3.0 times the time" in said[0]
    assert "6.0 times the memory" in said[0]
    assert "8.0 times the bytes" in said[0]
    assert "take 25 %" in said[2]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_cache_changes_no_logits(kv_heads: int) -> None:
    torch.manual_seed(0)
    model = ToyTransformer(ToyShape(kv_heads, 4, 2, 32))
    tokens = torch.randint(256, (2, 12))
    cache = ToyCache()
    parts = [model(tokens[:, :5], cache)] + [
        model(tokens[:, at : at + 1], cache) for at in range(5, 12)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-4, atol=1e-5)
    assert cache.held_bytes == 2 * 12 * model.shape.kv_bytes_per_token(4)


def test_averaging_equal_heads_changes_nothing_and_unequal_ones_much() -> None:
    torch.manual_seed(0)
    model = ToyTransformer(SMALL)
    tokens = torch.randint(256, (1, 10))
    other = averaged_heads(model, 2)
    assert other.shape.kv_heads == 2
    assert not torch.allclose(other(tokens), model(tokens), atol=1e-4)
    with torch.no_grad():
        for block in model.blocks:
            for projection in (block.attention.key, block.attention.value):
                first = projection.weight[: SMALL.head_dim].clone()
                projection.weight.copy_(first.repeat(4, 1))
    torch.testing.assert_close(
        averaged_heads(model, 1)(tokens), model(tokens), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(PolicyError, match="make no 3 groups"):
        averaged_heads(model, 3)


def test_training_learns_resumes_and_is_the_same_again(tmp_path: Path) -> None:
    said: list[str] = []
    results = train_variants(TEXT, PLAN, tmp_path / "a", shape=SMALL4, progress=said.append)
    loss = {each.variant: each.loss_nats for each in results}
    assert len(loss) == len(said) == 10
    for each in results:
        if "averaged" not in each.variant:
            assert each.loss_nats < each.curve[0][1] - 1.0
    assert loss["multi-query averaged, then trained"] < loss["multi-query averaged"]
    bytes_of = {each.variant: each.kv_bytes_per_token for each in results}
    assert bytes_of["multi-head"] == 8 * bytes_of["multi-query"]
    (tmp_path / "a/runs/2-groups-0.json").unlink()
    again: list[str] = []
    repeated = train_variants(TEXT, PLAN, tmp_path / "a", shape=SMALL4, progress=again.append)
    assert again == ["2 groups, seed 0"]
    assert {each.variant: each.loss_nats for each in repeated} == pytest.approx(loss)
    more = train_variants(TEXT, replace(PLAN, seeds=2), tmp_path / "a", shape=SMALL4)
    assert len(more) == 20
    assert [each.loss_nats for each in more[:10]] == [each.loss_nats for each in repeated]
    with pytest.raises(PolicyError, match="another plan or text"):
        train_variants(
            TEXT, GqaPlan(steps=31, batch=4, tokens=32, seeds=1), tmp_path / "a", shape=SMALL4
        )


SMALL4 = ToyShape(kv_heads=8, heads=8, layers=1, width=32)


def test_what_is_said_of_heads() -> None:
    def made(variant: str, nats: float, kv_bytes: int) -> GqaResult:
        return GqaResult(variant, 0, nats, ((0, 5.0), (10, nats)), kv_bytes, 1.0, 1.0)

    said = list(
        gqa_findings(
            [
                made("multi-head", 2.0, 800),
                made("2 groups", 2.05, 200),
                made("2 groups averaged", 3.0, 200),
                made("2 groups averaged, then trained", 2.25, 200),
            ]
        )
    )
    assert "25 % of the bytes, and the loss is +0.050" in said[0]
    assert "it is +1.000 off; a tenth of the steps mends 75 %" in said[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train-gqa", "--steps", "0"], "give 10 or more"),
        (["train-gqa", "--rate", "0"], "above 0 and below 1"),
        (["train-gqa", "--text-bytes", "900000"], "too few for texts"),
        (["attention", "--tokens", "1", "--model", "."], "holds no model"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/one.md").write_text("a text of few words\n" * 20)
    corpus = ["--corpus", str(tmp_path / "texts")]
    with pytest.raises(UsageError, match=said):
        policies_command([*words, *corpus, "--out", str(tmp_path / "out")])
