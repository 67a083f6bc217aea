"""Locust's page as a user works it: fill the form, start, read the statistics, stop."""

import asyncio

from playwright.async_api import Locator, Page, expect

ENDPOINT = "/v1/completions"
OUR_ROWS = ("TTFT (ms)", "ITL (ms)", "TPOT (ms)", "Cached-token share (%)", "Output tokens/s")
WAIT_S = 20


class SwarmPage:
    """Fields go by the name of their option, `users` and `spawn_rate` included."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.form = page.locator("form")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def field(self, option: str) -> Locator:
        head, *tail = {"users": "user_count"}.get(option, option).split("_")
        return self.form.locator(f"[name={head}{''.join(word.title() for word in tail)}]")

    async def open_parameters(self) -> None:
        """Unfold our options, where they are not yet."""
        heading = self.button("Custom parameters")
        if await heading.get_attribute("aria-expanded") != "true":
            await heading.click()
        await expect(self.field("contexts")).to_be_visible()

    async def fill(self, **options: object) -> None:
        await self.open_parameters()
        for option, value in options.items():
            field = self.field(option)
            if await field.evaluate("element => element.tagName") == "SELECT":
                await field.select_option(str(value))
            else:
                await field.fill(str(value))

    async def start(self, **options: object) -> None:
        """Start a swarm and wait until its page is there."""
        await self.fill(**options)
        await self.button("Start").click()
        await expect(self.button("Stop")).to_be_visible()

    async def refusal(self, **options: object) -> str:
        """What the form answers to options that must not start anything."""
        await self.fill(**options)
        alert = self.form.get_by_role("alert")
        await expect(alert).to_be_hidden()  # the one before goes when a field is changed
        await self.button("Start").click()
        await expect(alert).to_be_visible()
        return await alert.inner_text()

    async def stop(self) -> None:
        await self.button("Stop").click()
        await expect(self.button("New")).to_be_visible()

    async def new_form(self) -> None:
        await self.button("New").click()
        await expect(self.form).to_be_visible()

    async def cells(self, row: str) -> dict[str, str]:
        """A row of the statistics by its columns; an empty dict where it is not there yet."""
        table = self.page.locator("table").first
        titles = await table.locator("thead th").all_inner_texts()
        for texts in await table.locator("tbody tr").evaluate_all(CELL_TEXTS):
            if row in texts:
                return dict(zip(titles, texts, strict=True))
        return {}

    async def count(self, row: str) -> int:
        return int((await self.cells(row)).get("# Requests", "0"))

    async def count_above(self, row: str, least: int) -> int:
        """The row's count, once it has grown beyond `least`."""
        async with asyncio.timeout(WAIT_S):
            # The page is another process: nothing here could be waited for.
            while (count := await self.count(row)) <= least:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return count


CELL_TEXTS = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
