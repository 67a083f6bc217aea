"""A real vLLM as the reranker: with an encoder it scores by cosine, which we can compute too."""

import asyncio
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from loadgen.targets.hardware import free_ports
from rag_store.embedders.transformer import PACKAGE, open_minilm
from rag_store.errors import RerankerError
from rag_store.reranker import RerankerSpec, open_reranker

pytestmark = [pytest.mark.engine, pytest.mark.timeout(700)]

QUESTION = "Who leads the cluster?"
PASSAGES = (
    "Bread rises when yeast ferments the dough.",
    "A leader replicates its log to the followers.",
    "Blocks of the cache are paged.",
)
START_S = 600
ENV = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM that serves the packaged MiniLM."""
    package = find_spec(PACKAGE)
    assert package is not None
    assert package.origin is not None
    (port,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(Path(package.origin).parent / "model"), "--served-model-name", "minilm"),
        *("--runner", "pooling", "--enforce-eager", "--max-model-len", "256"),
        *("--kv-cache-memory-bytes", "100M"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    # So that the sockets, files and shared memory that it makes go with it.
    guard = ["loadgen.targets.guard", "--parent", str(os.getpid()), "--grace-s", "10"]
    guarded = [sys.executable, "-m", *guard, "--", *command]
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            guarded, stdin=subprocess.PIPE, stdout=file, stderr=file, env={**os.environ, **ENV}
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_ready(process, address, log)
        yield address
    finally:
        process.terminate()
        process.communicate()


def wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


async def relevances(url: str, model: str = "minilm") -> list[float]:
    async with open_reranker(RerankerSpec(url, model)) as reranker:
        assert reranker is not None
        return await reranker.relevances(QUESTION, PASSAGES)


def test_each_passage_has_its_own_score_whatever_the_order_of_the_reply(url: str) -> None:
    question, *passages = open_minilm().embed([QUESTION, *PASSAGES])
    cosines = [float(each.vector @ question.vector) for each in passages]
    found = asyncio.run(relevances(url))
    assert found == pytest.approx(cosines, abs=0.02)
    assert max(found) == found[1], "the passages are not in the order of their scores"


def test_what_vllm_refuses_is_told_in_its_words(url: str) -> None:
    with pytest.raises(RerankerError, match=r"answered HTTP 404: The model `other` does not"):
        asyncio.run(relevances(url, "other"))
