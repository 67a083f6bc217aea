"""Each policy on a tiny model with random weights: bytes, positions, equality, misuse."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from kv_policies import KvPolicy, PolicyError, known_policies, policy_named
from kv_policies.attention import attended, policies_attend, visible
from kv_policies.checks import (
    VOCABULARY,
    broken_promises,
    led,
    random_tokens,
    what_it_does,
)
from kv_policies.coding import Part
from kv_policies.eviction import HeldTokens
from kv_policies.policies.kvpress import PRESSES
from kv_policies.policies.minicache import MergedSide, merged
from kv_policies.policies.quantized import PackedIntegers
from kv_policies.policy import ModelShape

PROMPT, LONG, STEPS = 96, 224, 8
SMALL = {
    "full": "full",
    "hqq": "hqq:4",
    "heavy-hitters": "heavy-hitters:20+12",
    "l2-norm": "l2-norm:20+12",
    "layer-budget": "layer-budget:16+16",
    "low-rank": "low-rank:90+4+16",
    "mean-heads": "mean-heads:2",
    "minicache": "minicache:2+16",
    "two-tier": "two-tier:16+2",
    "three-tier": "three-tier:16+2+2",
    "sink-window": "sink-window:4+28",
    "window": "window:32",
}
"""Where the defaults are for larger models than these."""
LAYERS, HEADS, DIM = 5, 4, 16
TOKEN_BYTES = 2 * LAYERS * HEADS * DIM * 4
"""Of the full cache in float32."""


def small(name: str) -> KvPolicy:
    fitting = name if name in PRESSES else f"{name}:4+16"
    return policy_named(SMALL.get(name, fitting))


NAMES = sorted(known_policies())
UNDER_BUDGET = [name for name in NAMES if name != "mean-heads"]
UNIFORM = ("sink-window", "window")


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(request.param)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny("llama")


def tiny(kind: str, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": 512,
        "head_dim": DIM,
        "initializer_range": 0.2,
    } | more
    if kind == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**sizes)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def text(tokens: int = PROMPT + STEPS) -> Any:
    return random_tokens(2, tokens)


def reference(model: Any, tokens: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=tokens, use_cache=False).logits


def test_the_catalogue_is_the_folder() -> None:
    assert {"full", "sink-window", "window", "int2-token", "int8-mixed"} <= set(NAMES)
    for name, entry in known_policies().items():
        assert policy_named(entry.example).label == entry.example
        assert policy_named(name).label == entry.example
        assert entry.summary


@pytest.mark.parametrize("name", UNDER_BUDGET)
def test_it_is_the_full_cache_while_all_fits(model: Any, name: str) -> None:
    tokens = text(18)
    logits, _ = led(model, small(name), tokens, [12, *[1] * 6])
    torch.testing.assert_close(logits, reference(model, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "full"])
def test_it_does_something_beyond_that(model: Any, name: str) -> None:
    tokens = text(LONG + STEPS)
    logits, cache = led(model, small(name), tokens, [LONG, *[1] * STEPS])
    exact = reference(model, tokens)
    assert (logits - exact)[:, LONG:].abs().max() > 1e-5
    assert cache.held_bytes < 0.95 * 2 * (LONG + STEPS) * TOKEN_BYTES
    assert cache.get_seq_length() == LONG + STEPS


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_what_every_policy_promises(name: str) -> None:
    assert list(broken_promises(policy_named(name))) == []


BROKEN = """
import torch
from kv_policies.policies.full import Full, FullLayer
from kv_policies.policies.sink_window import SinkWindow


class Coin(SinkWindow):
    def scores(self, held):
        return torch.rand(held.keys.shape[:-1])


class _MixingLayer(FullLayer):
    def append(self, new):
        return type(new)(*(each.flip(0) for each in super().append(new)))


class Mixing(Full):
    def layer(self, index, shape, earlier):
        return _MixingLayer()


class _PeekingLayer(FullLayer):
    def append(self, new):
        kv = super().append(new)
        return type(new)(kv.keys, kv.values + new.values[..., -1:, :])


class Peeking(Full):
    def layer(self, index, shape, earlier):
        return _PeekingLayer()
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Coin", "the same text gives other logits the second time"),
        ("Mixing", "a text of a batch changes another"),
        ("Peeking", "a later token changes what was said before it"),
    ],
)
def test_a_broken_promise_is_found(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    assert said in list(broken_promises(policy_named(f"{tmp_path / 'broken.py'}:{name}")))


def test_what_a_policy_does_in_words() -> None:
    assert what_it_does(policy_named("full")) == (
        "the same as the full cache for 8 tokens, 100% of its bytes for 576"
    )
    assert what_it_does(policy_named("window:144")).startswith("the same as the full cache")
    assert "25% of its bytes" in what_it_does(policy_named("window:144"))
    assert what_it_does(policy_named("mean-heads:1")).startswith("other than the full cache")


@pytest.mark.parametrize("passes", [[PROMPT, *[1] * STEPS], [40, 40, 16, *[1] * STEPS]])
@pytest.mark.parametrize("name", UNIFORM)
def test_positions_are_those_at_which_keys_were_computed(
    model: Any, name: str, passes: list[int]
) -> None:
    """A recomputation from scratch, at the positions of the text, in which each query is masked to
    what the policy held when it was read, gives the same logits in every layer's turn."""
    tokens = text()
    logits, _ = led(model, small(name), tokens, passes)
    sinks, window = (4, 28) if name == "sink-window" else (0, 32)
    total = tokens.shape[1]
    mask = torch.zeros(total, total, dtype=torch.bool)
    start, held = 0, []
    for length in passes:
        for query in range(start, start + length):
            mask[query, held] = True
            mask[query, start : query + 1] = True
        start += length
        seen = [*held, *range(start - length, start)]
        held = seen if len(seen) <= sinks + window else [*seen[:sinks], *seen[-window:]]
    additive = torch.zeros(1, 1, total, total).masked_fill(~mask, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        again = model(input_ids=tokens, attention_mask=additive, use_cache=False).logits
    torch.testing.assert_close(logits, again, rtol=1e-3, atol=1e-3)


def test_a_cache_works_in_transformers_own_generation(llama: Any) -> None:
    """Without our attention, for policies that hold as much in each layer."""
    tokens = text(40)[:1]
    told: dict[str, Any] = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0}
    full = llama.generate(tokens, past_key_values=DynamicCache(config=llama.config), **told)
    ours = llama.generate(tokens, past_key_values=small("full").cache(llama.config), **told)
    assert torch.equal(full, ours)
    cache = small("sink-window").cache(llama.config)
    said = llama.generate(tokens, past_key_values=cache, **told)
    assert said.shape == full.shape
    assert [layer.held_tokens for layer in cache.layers] == [32] * LAYERS


@pytest.mark.parametrize(("bits", "most"), [(8, 0.01), (4, 0.1), (2, 0.5)])
def test_bytes_of_hqq_are_packed_and_read_again(bits: int, most: float) -> None:
    """Scales and zero points of a channel of 32 tokens, or of a token, are 4 bytes."""
    pytest.importorskip("hqq", reason="pip install --no-deps hqq")
    torch.manual_seed(8)
    states, policy = torch.randn(2, 3, 64, 16), policy_named(f"hqq:{bits}")
    for is_keys, groups in ((True, 2 * 16), (False, 64)):
        coded = policy.encode(states, Part(is_keys, 0, None))  # type: ignore[attr-defined]
        assert (coded.decoded() - states).norm() / states.norm() < most
        held = sum(each.nbytes for each in coded.held())
        assert held == 2 * 3 * (64 * 16 * bits // 8 + 4 * groups)


@pytest.mark.parametrize("press", PRESSES)
def test_a_press_keeps_its_share_of_the_prompt(llama: Any, press: str) -> None:
    pytest.importorskip("kvpress", reason="pip install --no-deps kvpress")
    _, cache = led(llama, policy_named(f"{press}:25"), text(), [PROMPT, *[1] * STEPS])
    assert cache.held_bytes == 2 * (PROMPT // 4 + STEPS) * TOKEN_BYTES
    assert cache.get_seq_length() == PROMPT + STEPS


@pytest.mark.parametrize(
    ("name", "package"), [("hqq:4", "hqq"), ("SnapKVPress", "kvpress"), ("TOVAPress:50", "kvpress")]
)
def test_a_package_that_is_not_there_is_a_line(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_policies.catalog.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=f"needs {package}: pip install --no-deps {package}$"):
        policy_named(name)
    assert name.partition(":")[0] not in known_policies()
    assert "full" in known_policies()


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("full", (PROMPT + STEPS) * LAYERS),
        ("sink-window", 32 * LAYERS),
        ("window", 32 * LAYERS),
        ("l2-norm", 32 * LAYERS),
        ("layer-budget", 32 * LAYERS),
    ],
)
def test_bytes_are_those_of_the_tokens_held(llama: Any, name: str, tokens: int) -> None:
    _, cache = led(llama, small(name), text(), [PROMPT, *[1] * STEPS])
    assert cache.held_bytes == 2 * tokens * TOKEN_BYTES // LAYERS


def test_bytes_of_heavy_hitters_count_the_sums(llama: Any) -> None:
    _, cache = led(llama, small("heavy-hitters"), text(), [PROMPT, *[1] * STEPS])
    assert cache.held_bytes == 2 * 32 * (TOKEN_BYTES + LAYERS * HEADS * 4)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_bytes_of_integers_are_packed(llama: Any, bits: int) -> None:
    """104 tokens: 4 first ones, two blocks of 32, 36 last ones; scales of a token are 4 bytes."""
    _, cache = led(llama, small(f"int{bits}-token"), text(), [PROMPT, *[1] * STEPS])
    packed = 64 * 2 * LAYERS * HEADS * (DIM * bits // 8 + 4)
    assert cache.held_bytes == 2 * (40 * TOKEN_BYTES + packed)


def test_bytes_of_mean_heads_are_those_of_fewer_heads(llama: Any) -> None:
    _, cache = led(llama, small("mean-heads"), text(), [PROMPT, *[1] * STEPS])
    assert cache.held_bytes == 2 * (PROMPT + STEPS) * TOKEN_BYTES * 2 // HEADS


def test_what_two_layers_share_counts_once(llama: Any) -> None:
    """Layers 2 and 3 are merged, 4 is left over: 64 of 104 tokens have one direction, two lengths
    and 4 outliers of each layer."""
    _, cache = led(llama, small("minicache"), text(), [PROMPT, *[1] * STEPS])
    layer = TOKEN_BYTES // LAYERS
    pair = 64 * layer + 2 * 64 * 2 * HEADS * 4 + 2 * 4 * layer + 2 * 4 * 8
    assert cache.held_bytes == 2 * (3 * 104 * layer + 2 * 40 * layer + pair)


@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize(("bits", "most"), [(8, 0.01), (4, 0.1), (2, 0.5)])
def test_integers_are_off_by_half_a_step_at_most(bits: int, most: float, by_channel: bool) -> None:
    torch.manual_seed(2)
    states = torch.randn(1, 2, 64, 16)
    back = PackedIntegers.of(states, bits, by_channel).decoded()
    blocks = states.unflatten(-2, (-1, 32))
    over = -2 if by_channel else -1
    step = (blocks.amax(over, keepdim=True) - blocks.amin(over, keepdim=True)) / (2**bits - 1)
    wrong = (back.unflatten(-2, (-1, 32)) - blocks).abs()
    assert (wrong <= 0.51 * step + 0.004).all()
    assert (back - states).norm() / states.norm() < most


def test_an_outlier_channel_costs_tokens_and_not_channels() -> None:
    torch.manual_seed(3)
    states = torch.randn(1, 1, 64, 16)
    states[..., 5] *= 60
    rest = [at for at in range(16) if at != 5]
    by_token, by_channel = (
        (PackedIntegers.of(states, 4, each).decoded() - states)[..., rest].norm()
        for each in (False, True)
    )
    assert by_token > 5 * by_channel


def test_constant_states_are_read_as_they_were() -> None:
    states = torch.full((1, 1, 32, 8), 3.5)
    assert torch.equal(PackedIntegers.of(states, 2, True).decoded(), states)


def test_low_rank_is_exact_where_states_have_that_rank() -> None:
    torch.manual_seed(4)
    states = torch.randn(2, 3, 64, 5) @ torch.randn(2, 3, 5, 16)
    policy: Any = policy_named("low-rank:100+0+0")
    coded = policy.encode(states, Part(True, 0, None))
    torch.testing.assert_close(coded.decoded(), states, rtol=1e-3, atol=1e-3)
    assert {each.shape[1] for each in coded.coefficients} == {5}


def test_mean_heads_are_what_averaged_projections_give(model: Any) -> None:
    tokens = text(24)
    logits, _ = led(model, policy_named("mean-heads:1"), tokens, [16, *[1] * 8])
    averaged = tiny(model.config.model_type)
    averaged.load_state_dict(model.state_dict())
    with torch.no_grad():
        for layer in averaged.model.layers:
            for name in ("k_proj", "v_proj"):
                for each in getattr(layer.self_attn, name).parameters():
                    heads = each.unflatten(0, (HEADS, DIM))
                    each.copy_(heads.mean(0, keepdim=True).expand_as(heads).flatten(0, 1))
    torch.testing.assert_close(logits, reference(averaged, tokens), rtol=1e-3, atol=1e-3)


def test_merged_layers_keep_lengths_and_outliers() -> None:
    torch.manual_seed(5)
    lower = torch.randn(1, 2, 40, 8)
    upper = 3 * lower + 0.1 * torch.randn_like(lower)
    upper[:, :, 7] = -lower[:, :, 7]
    sides: tuple[MergedSide, MergedSide] = merged(lower, upper)
    assert 7 in sides[0].places
    for side, states in zip(sides, (lower, upper), strict=True):
        back = side.decoded()
        torch.testing.assert_close(back[:, :, 7], states[:, :, 7])
        torch.testing.assert_close(back.norm(dim=-1), states.norm(dim=-1), rtol=1e-4, atol=1e-4)
        assert (back - states).norm() / states.norm() < 0.1


def test_two_tiers_with_room_for_all_blocks_are_the_full_cache(model: Any) -> None:
    tokens = text(LONG + STEPS)
    logits, cache = led(model, policy_named("two-tier:16+9"), tokens, [LONG, 4, *[1] * 4])
    torch.testing.assert_close(logits, reference(model, tokens), rtol=1e-3, atol=1e-3)
    blocks = (LONG - 16) // 32 - 1
    assert cache.slow_bytes == 2 * blocks * 32 * TOKEN_BYTES
    assert cache.traffic.moved_bytes == cache.slow_bytes, "each block once"
    assert cache.traffic.blocks == 2 * LAYERS * HEADS * blocks


def test_what_the_slow_tier_has_no_room_for_is_read_from_a_file(model: Any) -> None:
    """With places for all blocks it is the full cache, and each tier moves each of its own once."""
    tokens = text(LONG + STEPS)
    logits, cache = led(model, policy_named("three-tier:16+9+2"), tokens, [LONG, 4, *[1] * 4])
    torch.testing.assert_close(logits, reference(model, tokens), rtol=1e-3, atol=1e-3)
    blocks = (LONG - 16) // 32 - 1
    assert cache.slow_bytes == 2 * 2 * 32 * TOKEN_BYTES
    assert cache.disk_bytes == 2 * (blocks - 2) * 32 * TOKEN_BYTES
    assert cache.traffic.moved_bytes == cache.slow_bytes
    assert cache.disk_traffic.moved_bytes == cache.disk_bytes
    assert cache.disk_traffic.blocks == 2 * LAYERS * HEADS * (blocks - 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_a_block_lies_changes_no_logit(model: Any, dtype: torch.dtype) -> None:
    """Blocks that are fetched again and again, in passes that spill one after the other."""
    tokens, passes = text(LONG + 80), [LONG, *[1] * 80]
    model = deepcopy(model).to(dtype)
    two, held = led(model, policy_named("two-tier:16+2"), tokens, passes)
    three, spilled = led(model, policy_named("three-tier:16+2+1"), tokens, passes)
    assert torch.equal(two, three)
    assert spilled.held_bytes == held.held_bytes
    assert spilled.slow_bytes + spilled.disk_bytes == held.slow_bytes
    both = spilled.traffic + spilled.disk_traffic
    assert (both.blocks, both.moved_bytes) == (held.traffic.blocks, held.traffic.moved_bytes)
    assert spilled.traffic.blocks > 0


def test_a_full_disk_is_a_line(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    full = partial(open, "/dev/full", "wb")
    monkeypatch.setattr("kv_policies.policies.three_tier.TemporaryFile", full)
    with pytest.raises(PolicyError, match=r"cannot be written \(No space left on device\): set"):
        led(model, policy_named("three-tier:16+2+1"), text(LONG), [LONG - 1, 1])


def test_a_query_fetches_the_block_that_holds_its_key() -> None:
    """And what is there from the pass before is not moved again."""
    torch.manual_seed(7)
    policy = policy_named("two-tier:1+2")
    layer = policy.layer(0, ModelShape(1, 1, 16), [])
    keys = 0.01 * torch.randn(1, 1, 32 * 6 + 1, 16)
    values = torch.arange(keys.shape[2]).float()[None, None, :, None].expand(keys.shape).clone()
    for place, channel, value in ((3, 5, 10.0), (5, 9, 10.0), (2, 9, -10.0)):
        keys[0, 0, 32 * place + 7, channel] = value
    layer.update(keys, values)
    layer.update(keys[..., :1, :], values[..., :1, :])
    query = torch.zeros(1, 1, 1, 16)
    query[..., 5] = query[..., 9] = 1.0
    read = layer.fetched(query)
    assert read is not None
    found = sorted(int(each) for each in read.values[0, 0, ::32, 0])
    assert found == [32 * 3, 32 * 5]
    assert layer.traffic.blocks == 2
    layer.fetched(query)
    assert layer.traffic.blocks == 2
    query[..., 9] = -1.0
    read = layer.fetched(query)
    assert read is not None
    assert sorted(int(each) for each in read.values[0, 0, ::32, 0]) == [32 * 2, 32 * 3]
    assert layer.traffic.blocks == 3
    assert layer.traffic.moved_bytes == 3 * 2 * 32 * 16 * 4


def test_attention_by_hand_is_attention() -> None:
    torch.manual_seed(6)
    query, key, value = torch.randn(2, 8, 300, 16), *torch.randn(2, 2, 4, 320, 16)
    output, sums = attended(query, key, value, 0.25)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(2, 1),
        value.repeat_interleave(2, 1),
        attn_mask=visible(300, 320, query.device),
    )
    torch.testing.assert_close(output, wanted, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(sums.sum(-1), torch.full((2, 4), 600.0), rtol=1e-4, atol=1e-2)


def test_heavy_hitters_keep_what_was_looked_at(llama: Any) -> None:
    attention = torch.zeros(1, 1, 10)
    attention[..., 3] = 5.0
    states = torch.zeros(1, 1, 10, 4)
    policy: Any = policy_named("heavy-hitters:1+2")
    scores = policy.scores(HeldTokens(states, states, attention, 0, 1))
    assert sorted(scores.topk(3).indices.flatten().tolist()) == [3, 8, 9]


def test_l2_norm_keeps_low_keys() -> None:
    keys = torch.ones(1, 1, 10, 4)
    keys[:, :, 4] = 0.1
    policy: Any = policy_named("l2-norm:1+2")
    scores = policy.scores(HeldTokens(keys, keys, None, 0, 1))
    assert sorted(scores.topk(3).indices.flatten().tolist()) == [4, 8, 9]


def test_layers_share_a_budget() -> None:
    policy: Any = policy_named("layer-budget:4+100")
    budgets = [policy.budget_tokens(layer, 30) for layer in range(30)]
    assert sum(budgets) == 30 * 104
    assert budgets[0] > 1.7 * 104 > 0.5 * 104 > budgets[-1] > 4
    assert all(before >= after - 1 for before, after in pairwise(budgets))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("window:0", "window: 0 window tokens: give 1 or more"),
        ("sink-window:4+0", "0 window tokens: give 1 or more"),
        ("sink-window:4", "has 1 parameters: give SINK_TOKENS+WINDOW_TOKENS"),
        ("sink-window:4+x", "'x' is no number"),
        ("window:-3", "'-3' is no number"),
        ("window:99999999999999999999", "is no number"),
        ("sink-windw:4+8", "did you mean 'sink-window'"),
        ("nothing-like-it", "choose of full, "),
        ("full:3", "has 1 parameters: give no parameters"),
        ("low-rank:101+0+0", "101 percent of energy: give to 100"),
        ("low-rank:0+0+0", "0 energy percent: give 1 or more"),
        ("two-tier:0+3", "0 window tokens: give 1 or more"),
        ("two-tier:8+0", "0 fetched blocks: give 1 or more"),
        ("three-tier:8+1+0", "0 slow blocks: give 1 or more"),
        ("mean-heads:0", "0 groups: give 1 or more"),
        ("none.py:Mine", "there is no file none.py"),
    ],
)
def test_absurd_parameters_are_a_line(name: str, said: str) -> None:
    with pytest.raises(PolicyError) as raised:
        policy_named(name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "heads", "said"),
    [
        ("mean-heads:1", 1, "has one KV head, there is nothing to average"),
        ("mean-heads:3", 4, "4 KV heads give 1, 2 groups"),
        ("mean-heads:4", 4, "4 KV heads give 1, 2 groups"),
        ("layer-budget:4+2", 4, "no window is left in late layers of 5: give more tokens"),
        ("minicache:4+8", 4, "has 5 layers, and two are merged: give 3 or less"),
    ],
)
def test_a_model_it_is_not_for_is_a_line(name: str, heads: int, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        policy_named(name).check(ModelShape(LAYERS, heads, DIM))


def test_models_with_sliding_layers_are_refused() -> None:
    config = Qwen2Config(num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(PolicyError, match="give one of full attention only"):
        policy_named("full").cache(config)


def test_a_model_whose_layers_all_see_a_window_is_refused() -> None:
    with pytest.raises(PolicyError, match="see a window of 512 tokens: give one of full"):
        policy_named("full").cache(MistralConfig(num_hidden_layers=2, sliding_window=512))
    policy_named("full").cache(MistralConfig(num_hidden_layers=2, sliding_window=None))


MINE = '''
from dataclasses import dataclass

from kv_policies import EvictionPolicy


@dataclass(frozen=True)
class EveryOther(EvictionPolicy):
    """Tokens at even places, and the last ones."""

    stride_tokens: int = 16
    window_tokens: int = 8

    def scores(self, held):
        return -held.age + 1000.0 * (held.age < self.window_tokens) + 500.0 * (held.age % 2 == 0)


class Flat(EveryOther):
    def scores(self, held):
        return held.age[0]


class Lacking(EvictionPolicy):
    pass


class NoPolicy:
    pass
'''


@pytest.fixture
def mine(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "my_policy.py").write_text(MINE)
    return lambda name: f"{tmp_path / 'my_policy.py'}:{name}"


def test_a_policy_of_a_users_own(llama: Any, mine: Callable[[str], str]) -> None:
    policy = policy_named(mine("EveryOther:20+12"))
    assert policy.label == "EveryOther:20+12"
    _, cache = led(llama, policy, text(), [PROMPT, *[1] * STEPS])
    assert cache.held_bytes == 2 * 32 * TOKEN_BYTES


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lacking", "Lacking lacks the method scores"),
        ("NoPolicy", "has no policy 'NoPolicy'"),
        ("Absent", "has no policy 'Absent'"),
        ("EveryOther:1", "give STRIDE_TOKENS\\+WINDOW_TOKENS"),
    ],
)
def test_a_users_mistake_is_a_line(mine: Callable[[str], str], name: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        policy_named(mine(name))


def test_scores_of_a_wrong_shape_are_a_line(llama: Any, mine: Callable[[str], str]) -> None:
    with pytest.raises(PolicyError, match=r"scores are \(4, 96\), not of shape \(2, 4, 96\)"):
        led(llama, policy_named(mine("Flat")), text(), [PROMPT, *[1] * STEPS])


def test_a_file_that_raises_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(PolicyError, match="ZeroDivisionError: division by zero"):
        policy_named(f"{tmp_path / 'broken.py'}:Mine")


def test_the_models_own_attention_comes_back(llama: Any) -> None:
    before = llama.config._attn_implementation
    with pytest.raises(RuntimeError), policies_attend(llama):
        raise RuntimeError
    assert llama.config._attn_implementation == before
