"""The live tab in a real browser: what a user sees of a swarm while it runs and after it."""

import asyncio
import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from openai_host import TOKEN_S, OpenAiHost
from playwright.async_api import Locator, Page, expect
from swarm_page import WAIT_S, SwarmPage
from ui_process import UiProcess, kvswarm_ui

pytestmark = pytest.mark.browser

LINES = {
    "Time to first token": {"p50", "p95", "p99"},
    "Inter-token latency": {"p50", "p95", "p99"},
    "Requests": {"served", "failed"},
    "Output tokens": {"tokens"},
    "Users": {"users"},
    "Prompt tokens from cache": {"as the replies tell"},
    "Lag of the load generator": {"event loop, p99"},
}
"""Of a host without /metrics that tells cached tokens."""
TABLES = ("requests", "server metrics", "client metrics", "per-context")
HOSTILE = (
    '<img src=x onerror="window.broken=1">',
    "=cmd()",
    "<b>bold</b>&amp;",
    "Transformer architecture",
)


class LiveTab:
    """The tab as its reader sees it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.area = page.locator("#kvswarm-live")
        self.marks = self.chart("timeline").locator(".kv-mark")
        self.rows = self.chart("contexts").locator("tbody tr")

    def chart(self, name: str) -> Locator:
        return self.area.locator(f'[data-chart="{name}"]')

    async def open(self) -> None:
        await self.page.get_by_role("tab", name="KV cache").click()
        await expect(self.area).to_be_visible()

    async def lines(self, name: str) -> dict[str, int]:
        """Each line of a chart and how many points it has."""
        told = (
            await self.chart(name)
            .locator(".kv-line")
            .evaluate_all("lines => lines.map(line => [line.dataset.line, line.getAttribute('d')])")
        )
        return {line: path.count("M") + path.count("L") for line, path in told}

    async def contexts(self) -> dict[str, tuple[str, int]]:
        """Each context of the timeline with its colour and how many marks it has."""
        told = await self.marks.evaluate_all(
            "all => all.map(({dataset, attributes}) =>"
            " [dataset.context, attributes.fill.value, +dataset.count])"
        )
        return {name: (colour, count) for name, colour, count in told}

    async def table(self) -> list[list[str]]:
        rows = await self.rows.evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
        )
        return [list(row) for row in rows]

    async def download(self, title: str, folder: Path) -> list[dict[str, str]]:
        """The rows of one of our tables, from Locust's page of downloads."""
        await self.page.get_by_role("tab", name="Download Data").click()
        async with self.page.expect_download() as download:
            await self.page.get_by_role("link", name=f"Download kvswarm {title} CSV").click()
        path = folder / (await download.value).suggested_filename
        await (await download.value).save_as(path)
        with path.open(newline="") as file:
            return list(csv.DictReader(file))


async def check_untold(tab: LiveTab, host: OpenAiHost) -> None:
    """A reply without usage is not taken for one whose prompt was in the cache, or was not."""
    timeline = tab.chart("timeline")
    drawn = timeline.locator('path.kv-untold[d^="M"]').first
    await expect(timeline.locator('path.kv-cached[d^="M"]').first).to_be_attached()
    await expect(drawn).not_to_be_attached()
    host.tells_usage = False
    await expect(drawn).to_be_attached()
    await expect(timeline).to_contain_text("not told")
    host.tells_usage = True


async def test_a_swarm_is_seen_while_it_runs_after_it_and_until_the_next(
    swarm: SwarmPage, host: OpenAiHost, ui: UiProcess, tmp_path: Path
) -> None:
    page, tab = swarm.page, LiveTab(swarm.page)
    early = await page.request.get(f"{ui.url}/kvswarm/csv/requests.csv")
    assert (early.status, "no swarm has run yet" in await early.text()) == (404, True)
    await swarm.start(users=3, spawn_rate=3, contexts=5, zipf=0, output_tokens=9)
    await tab.open()
    for chart, lines in LINES.items():
        drawn = tab.chart(chart).locator(".kv-line")
        await expect(drawn).to_have_count(len(lines))
        assert (await tab.lines(chart)).keys() == lines
    await expect(tab.chart("KV cache in use")).to_contain_text("no /metrics: it tells nothing")
    await expect(tab.marks).to_have_count(5)
    await expect(tab.rows).to_have_count(5)
    # A slow machine may make the client late, which the tab then says.
    others = tab.area.get_by_role("alert").filter(has_not_text="Client saturated")
    await expect(others).to_have_count(0)
    objective = tab.chart("Requests within the objective")
    await expect(objective).to_be_hidden()
    contexts = await tab.contexts()
    assert len({colour for colour, _ in contexts.values()}) == 5
    points = (await tab.lines("Requests"))["served"]
    await page.request.post(f"{ui.url}/swarm", form={"user_count": "2", "spawn_rate": "2"})
    host.token_s = 0.2  # a timeline that grows quickly would push the chart away below the pointer
    await check_pointer(tab)
    host.token_s = TOKEN_S
    await page.wait_for_function(MORE_POINTS, arg=points)
    for fact in (f"Host\n{host.url}", "Model\ndemo", "KV cache\nsize not known"):
        await expect(tab.area.locator(".kv-about")).to_contain_text(fact, use_inner_text=True)
    await check_untold(tab, host)
    await check_themes(tab)
    script = f"{ui.url}/kvswarm/static/elements.js"
    assert await page.evaluate(FIGURES, script) == ["99.9", "99.96", "99.99", "100"]

    await page.get_by_role("button", name="Reset").click()
    await page.wait_for_function(FEWER_POINTS, arg=points)
    await swarm.stop()
    run = await ui.closed_run(0)
    marks = await settled(tab)
    assert 0 < marks < len(run.rows)
    tables = {title: await tab.download(title, tmp_path) for title in TABLES}
    assert tables["requests"] == run.rows
    assert len(tables["client metrics"]) > 2
    assert len(tables["server metrics"]) > 2
    assert sum(int(row["requests"]) for row in tables["per-context"]) == marks
    batches = page.get_by_text("Download kvswarm batches CSV")
    await expect(batches).to_contain_text("send no batches")
    assert await batches.get_attribute("href") is None
    report = page.get_by_role("link", name="Download kvswarm report HTML")
    await expect(report).to_contain_text(f"of {run.path}")
    async with page.expect_download() as download:
        await report.click()
    await (await download.value).save_as(tmp_path / "report.html")
    assert "kvswarm report" in (tmp_path / "report.html").read_text()

    await swarm.new_form()
    await swarm.start(users=1, contexts=2, slo="ttft_ms<=60000")
    await tab.open()
    await expect(objective.locator('[data-line="ttft_ms<=60000"]')).to_have_count(1)
    await expect(tab.marks).to_have_count(2)
    await expect(tab.rows).to_have_count(2)
    assert len(await tab.lines("Requests")) == 2


async def settled(tab: LiveTab) -> int:
    """How many marks there are, once the table counts as many requests."""
    async with asyncio.timeout(WAIT_S):
        while True:
            marks = sum(count for _, count in (await tab.contexts()).values())
            if marks and marks == sum(int(row[1]) for row in await tab.table()):
                return marks
            await asyncio.sleep(0.1)


async def check_pointer(tab: LiveTab) -> None:
    """Its line and the figures beside it stay where it is, and are those of the drawing below."""
    plot = tab.chart("Requests").locator(".kv-plot")
    async with asyncio.timeout(WAIT_S):
        while not await line_stays(tab, plot):
            pass
    told = tab.area.locator(".kv-tip")
    await tab.page.mouse.move(1, 1)
    await expect(told).to_be_hidden()
    await expect(plot.locator(".kv-cursor")).to_have_count(0)


async def line_stays(tab: LiveTab, plot: Locator) -> bool:
    """Whether the line is still at the pointer after a new drawing; the page may have moved it."""
    box = await plot.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] - 60
    await tab.page.mouse.move(x, box["y"] + 70)
    told = tab.area.locator(".kv-tip")
    before = await told.inner_text()
    await expect(told).not_to_have_text(before, use_inner_text=True)
    line = await plot.locator(".kv-cursor").bounding_box()
    return line is not None and abs(line["x"] + line["width"] / 2 - x) < 1


async def check_themes(tab: LiveTab) -> None:
    """Text and lines of the grid follow Locust's switch at once; the contexts' colours stay."""
    light = await tab.area.evaluate(COLOURS)
    await tab.page.locator("header button").last.click()
    await tab.page.wait_for_function(f"dark => ({COLOURS})()[0] !== dark", arg=light[0])
    dark = await tab.area.evaluate(COLOURS)
    assert sum(light[0]) < 200 < 600 < sum(dark[0])
    assert light[0] != dark[0]
    assert light[1] == dark[1]


FIGURES = "async url => [99.94, 99.96, 99.999, 100].map((await import(url)).figure)"
COLOURS = """() => [
    getComputedStyle(document.querySelector('#kvswarm-live svg text')).fill.match(/\\d+/g)
        .slice(0, 3).map(Number),
    [...document.querySelectorAll('.kv-mark')].map(mark => getComputedStyle(mark).fill)
        .sort().filter((fill, at, all) => fill !== all[at - 1]),
]"""
POINTS = """document.querySelector('[data-line="served"]')?.getAttribute('d').split('L').length"""
MORE_POINTS = f"points => {POINTS} > points"
FEWER_POINTS = f"points => {POINTS} < points"


async def test_names_and_errors_of_others_are_only_text_also_with_workers(
    page: Page, host: OpenAiHost, tmp_path: Path
) -> None:
    corpus, questions = tmp_path / "corpus.jsonl", tmp_path / "questions.jsonl"
    documents = [{"doc_id": name, "title": name, "text": "words " * 400} for name in HOSTILE]
    asked = [{"qid": f"q{at}", "question": "Why?", "doc_id": n} for at, n in enumerate(HOSTILE)]
    corpus.write_text("\n".join(map(json.dumps, documents)))
    questions.write_text("\n".join(map(json.dumps, asked)))
    options: list[Any] = ["--host", host.url, "--processes", 2, "--corpus", corpus]
    async with kvswarm_ui(tmp_path / "runs", *options) as ui:
        await page.goto(ui.url)
        swarm, tab = SwarmPage(page), LiveTab(page)
        await swarm.start(users=4, spawn_rate=4, contexts=len(HOSTILE), zipf=0, output_tokens=4)
        await tab.open()
        await expect(tab.rows).to_have_count(len(HOSTILE))
        await expect(tab.marks).to_have_count(len(HOSTILE))
        assert (await tab.contexts()).keys() == set(HOSTILE)
        assert {row[0] for row in await tab.table()} == set(HOSTILE)
        legend = tab.chart("timeline").locator('[data-part="contexts"]')
        for name in HOSTILE:
            await expect(legend).to_contain_text(name)
        await check_sorting(tab)
        await check_phone(tab)
        host.refusal = json.dumps({"message": HOSTILE[0]})
        failed = tab.chart("timeline").locator(".kv-failed")
        await expect(failed).to_have_attribute("d", re.compile("M"))
        await hint_at(tab, failed, f"HTTP 500: {HOSTILE[0]}")
        assert await page.evaluate("window.broken") is None
        assert await tab.area.locator("img, b > b, script").count() == 0
        await swarm.stop()
        run = await ui.closed_run(0)
        contexts = await tab.download("per-context", tmp_path)
        assert {row["worker"] for row in run.rows} == {"0", "1"}
        assert {row["context_id"] for row in contexts} == {
            *(name for name in HOSTILE if name != "=cmd()"),
            "'=cmd()",
        }
        assert sum(int(row["requests"]) for row in contexts) == len(run.rows)


async def check_sorting(tab: LiveTab) -> None:
    """A click on a title sorts by it, another one the other way round."""
    title = tab.chart("contexts").get_by_role("button", name="Context")
    for order, names in (("ascending", sorted(HOSTILE)), ("descending", sorted(HOSTILE)[::-1])):
        await title.click()
        head = tab.chart("contexts").locator("th").first
        await expect(head).to_have_attribute("aria-sort", order)
        assert [row[0] for row in await tab.table()] == names


async def check_phone(tab: LiveTab) -> None:
    """On a narrow page each word of a context's name stands in one line, and no column is lost."""
    await tab.page.set_viewport_size({"width": 390, "height": 844})
    table = tab.chart("contexts").locator("table")
    words = await table.evaluate(WORDS)
    assert "architecture" in words
    assert [word for word, lines in words.items() if lines > 1] == []
    box = await table.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
    await tab.page.set_viewport_size({"width": 1280, "height": 900})


WORDS = """table => {
    const found = {}, range = document.createRange();
    for (const { childNodes } of table.querySelectorAll("td .kv-key")) {
        const text = [...childNodes].find(node => node.nodeType === Node.TEXT_NODE);
        for (const { 0: word, index } of text.data.matchAll(/(?<!\\S)\\p{L}+(?!\\S)/gu)) {
            range.setStart(text, index);
            range.setEnd(text, index + word.length);
            found[word] = new Set([...range.getClientRects()].map(({ top }) => top)).size;
        }
    }
    return found;
}"""


async def hint_at(tab: LiveTab, mark: Locator, expected: str) -> None:
    """Point at the first cell that the mark touches until that is told; a new drawing moves it."""
    drawing = tab.chart("timeline").locator(".kv-timeline svg")
    async with asyncio.timeout(WAIT_S):
        while expected not in await tab.area.locator(".kv-tip").inner_text():
            await drawing.scroll_into_view_if_needed()
            (x, y) = map(
                float, re.findall(r"M([\d.]+) ([\d.]+)", await mark.get_attribute("d") or "")[0]
            )
            box = await drawing.bounding_box()
            assert box is not None
            await tab.page.mouse.move(box["x"] + x + 1, box["y"] + y + 1)
            await asyncio.sleep(0.05)
