"""The trained model on a real vLLM: what it says makes sense. It is made once, in the cache.

In float32: processors round products of bfloat16 differently, and with so small a model another
first word is then another answer.
"""

from pathlib import Path

import pytest

from loadgen.client.client import StreamingClient
from loadgen.client.settings import ClientSettings
from loadgen.launch.pipeline import SpokenExchange
from loadgen.launch.target_run import model_named
from loadgen.targets.catalog import load_catalog
from loadgen.targets.target import TargetSettings, start_target
from loadgen.targets.trained_model import TRAINED

pytestmark = [pytest.mark.engine, pytest.mark.timeout(700)]

NOTE = "The blue door leads to the garden. The red door leads to the cellar, where wine is kept."
ANSWERS = {
    "What is the capital of France?": "Paris",
    f"{NOTE}\n\nWhere does the red door lead to?": "cellar",
}


async def test_it_knows_a_capital_and_reads_a_document(tmp_path: Path) -> None:
    settings = TargetSettings(str(model_named(TRAINED)), args=("--dtype", "float32"))
    said = {}
    async with start_target(load_catalog()["vllm"], settings, tmp_path) as target:
        chat = ClientSettings(url=target.url, model=target.model, endpoint="chat")
        async with StreamingClient(chat) as client:
            for question in ANSWERS:
                texts: list[str] = []
                await client.stream(question, 32, SpokenExchange(texts.append))
                said[question] = "".join(texts)
    assert [ANSWERS[each] in text for each, text in said.items()] == [True, True], said
