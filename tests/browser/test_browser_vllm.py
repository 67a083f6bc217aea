"""Swarms from the form against a real vLLM of ours: each of them begins with cold caches."""

from pathlib import Path

import pytest
from playwright.async_api import Page
from swarm_page import ENDPOINT, OUR_ROWS, SwarmPage
from ui_process import ClosedRun, kvswarm_ui

pytestmark = [pytest.mark.browser, pytest.mark.engine, pytest.mark.timeout(900)]

TARGET = ("--target", "vllm", "--kv-tokens", 5120, "--context-tokens", 500)


async def test_each_swarm_of_the_form_finds_a_cold_vllm(page: Page, tmp_path: Path) -> None:
    async with kvswarm_ui(tmp_path / "runs", *TARGET, start_timeout_s=600) as ui:
        await page.goto(ui.url)
        swarm = SwarmPage(page)
        await swarm.start(users=1, contexts=1, output_tokens=8)
        for row in (ENDPOINT, *OUR_ROWS):
            await swarm.count_above(row, 2)
        await swarm.stop()
        first = await ui.closed_run(0)
        await page.screenshot(path=tmp_path / "vllm.png")

        await swarm.new_form()
        await swarm.start()
        await ui.rows_written(1, 3)  # the page shows the last swarm for a moment longer
        await swarm.stop()
        second = await ui.closed_run(1)
    for run in (first, second):
        check_cold_then_warm(run)
    assert first.rows[0]["context_id"] == second.rows[0]["context_id"]


def check_cold_then_warm(run: ClosedRun) -> None:
    """The only context is computed by the first request and found by the next ones."""
    assert run.facts["cache_state"] == "cold"
    assert run.facts["target"]["usable_tokens"] == 5120
    assert {row["outcome"] for row in run.rows} == {"ok"}
    cached = [int(row["cached_tokens"]) for row in run.rows]
    assert cached[0] == 0
    assert all(tokens >= 384 for tokens in cached[1:])  # three full blocks of 128 of 500 tokens
    assert run.summary["server"]["hit_rate"] > 0
