"""The installed browser that the tests drive; none is ever downloaded."""

import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, async_playwright, expect

NAMES = ("google-chrome", "chrome", "chromium", "chromium-browser")
ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WAIT_MS = 20_000


def find_browser(environment: Mapping[str, str]) -> str:
    """The browser's path; without one the test fails in CI and is skipped elsewhere."""
    chosen = environment.get("KVSWARM_BROWSER")
    for name in (chosen,) if chosen else NAMES:
        path = shutil.which(name, path=environment.get("PATH"))
        if path:
            return path
    reason = (
        f"no browser {chosen or ' or '.join(NAMES)}: `apt-get install chromium`, "
        "or set KVSWARM_BROWSER to an installed Chrome or Chromium"
    )
    if environment.get("CI", "").lower() in ("true", "1"):
        pytest.fail(reason)
    pytest.skip(reason)


@asynccontextmanager
async def browser_page() -> AsyncIterator[Page]:
    """An empty page of a headless browser of its own."""
    path = find_browser(os.environ)
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(WAIT_MS)
            yield page
        finally:
            await browser.close()
