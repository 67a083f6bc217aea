"""A page, a host, and `kvswarm ui` against it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from chromium import browser_page
from openai_host import OpenAiHost, openai_host
from playwright.async_api import Page
from swarm_page import SwarmPage
from ui_process import UiProcess, kvswarm_ui


@pytest_asyncio.fixture
async def page() -> AsyncIterator[Page]:
    async with browser_page() as page:
        yield page


@pytest_asyncio.fixture
async def host() -> AsyncIterator[OpenAiHost]:
    async with openai_host() as host:
        yield host


@pytest_asyncio.fixture
async def ui(host: OpenAiHost, tmp_path: Path) -> AsyncIterator[UiProcess]:
    async with kvswarm_ui(tmp_path / "runs", "--host", host.url) as ui:
        yield ui


@pytest_asyncio.fixture
async def swarm(page: Page, ui: UiProcess) -> SwarmPage:
    """The page of `kvswarm ui`, with the form of the first swarm."""
    await page.goto(ui.url)
    return SwarmPage(page)
