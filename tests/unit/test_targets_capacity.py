import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.targets.catalog import load_catalog
from loadgen.targets.hardware import Platform
from loadgen.targets.plan import KvCapacity, plan_services
from loadgen.targets.settings import TargetSettings, model_window_tokens

OWN = """
[services.engine]
argv = ["engine", "{block_size}"]
ready = "/"
[targets.own]
services = ["engine"]
"""


@given(st.integers(2049, 10**9), st.sampled_from([16, 32, 128, 1024]))
def test_the_capacity_is_the_least_whole_blocks_that_hold_the_tokens(
    kv_tokens: int, block_size: int
) -> None:
    capacity = KvCapacity.of_tokens(kv_tokens, block_size)
    assert kv_tokens <= capacity.usable_tokens < kv_tokens + block_size
    assert capacity.usable_tokens == capacity.usable_blocks * block_size
    assert capacity.blocks == capacity.usable_blocks + 1


def test_the_same_tokens_are_usable_on_cpu_and_gpu() -> None:
    cpu, gpu = KvCapacity.of_tokens(2560, 128), KvCapacity.of_tokens(2560, 16)
    assert (cpu.blocks, gpu.blocks) == (21, 161)
    assert cpu.usable_tokens == gpu.usable_tokens == 2560


@pytest.mark.parametrize("kv_tokens", [-5, 0, 1, 128])
def test_less_than_two_blocks_is_refused_with_the_least_that_works(kv_tokens: int) -> None:
    with pytest.raises(UsageError, match=f"--kv-tokens {kv_tokens} .*128 tokens.* 129"):
        KvCapacity.of_tokens(kv_tokens, 128)
    assert KvCapacity.of_tokens(129, 128).usable_blocks == 2


def test_a_request_is_bounded_by_the_smaller_of_window_and_cache() -> None:
    capacity = KvCapacity.of_tokens(2560, 128)
    assert capacity.max_model_len(2000) == 2000
    assert capacity.max_model_len(12288) == 2560
    assert capacity.max_model_len(None) == 2560


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"max_position_embeddings": "many"}'])
def test_a_window_that_is_not_there_is_unknown(tmp_path: Path, text: str) -> None:
    assert model_window_tokens(str(tmp_path)) is None
    (tmp_path / "config.json").write_text(text)
    assert model_window_tokens(str(tmp_path)) is None


def test_the_window_is_read_from_a_local_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 4096}))
    assert model_window_tokens(str(tmp_path)) == 4096


def test_the_window_of_several_kinds_of_input_is_that_of_the_text(tmp_path: Path) -> None:
    config = {"text_config": {"max_position_embeddings": 4096}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_window_tokens(str(tmp_path)) == 4096


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_placeholder_of_the_block_size_needs_one_in_the_catalog(
    platform: Platform, tmp_path: Path
) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    spec = load_catalog(tmp_path / "own.toml")["own"]
    needs = rf"own: \{{block_size\}} needs block_size\.{platform} of its engine in the catalog"
    with pytest.raises(UsageError, match=needs):
        plan_services(spec, TargetSettings("m"), platform, {"engine.port": 1})
