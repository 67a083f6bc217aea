"""Swarms started, watched and stopped in a real browser, against a host of the test's own."""

import asyncio
import csv
import re
from pathlib import Path

import pytest
from openai_host import CACHED_TOKENS, PROMPT_TOKENS, OpenAiHost
from playwright.async_api import expect
from swarm_page import ENDPOINT, OUR_ROWS, SwarmPage
from ui_process import ClosedRun, UiProcess, until

from loadgen.swarm.options.flags import FORM_OPTIONS

pytestmark = pytest.mark.browser


async def test_each_swarm_of_the_form_shows_its_statistics_and_keeps_its_run(
    swarm: SwarmPage, ui: UiProcess, host: OpenAiHost
) -> None:
    await swarm.start(users=3, spawn_rate=3, contexts=5, zipf=1.1, output_tokens=9, seed=7)
    counts = {row: await swarm.count_above(row, 0) for row in (ENDPOINT, *OUR_ROWS)}
    for row, count in counts.items():
        await swarm.count_above(row, count)
    await swarm.page.screenshot(path=ui.out.with_suffix(".png"))
    await swarm.stop()
    first = await ui.closed_run(0)
    assert await swarm.count(ENDPOINT) == len(first.rows)
    assert {body["max_tokens"] for body in host.bodies} == {9}

    await swarm.new_form()
    await swarm.start(users=1, contexts=2, zipf=0, output_tokens="3-4")
    await ui.rows_written(1, 10)  # the page shows the last swarm for a moment longer
    await swarm.stop()
    second = await ui.closed_run(1)
    assert await swarm.count(ENDPOINT) == await swarm.count("TTFT (ms)") == len(second.rows)

    assert len(ui.runs()) == 2
    asked = {"num_users": 3, "contexts": 5, "zipf": 1.1, "output_tokens": "9", "seed": 7}
    check_run(first, asked)
    # What the second form did not touch is what the first swarm had.
    check_run(second, asked | {"num_users": 1, "contexts": 2, "zipf": 0.0, "output_tokens": "3-4"})
    assert {row["output_tokens"] for row in first.rows} == {"9"}
    assert {row["output_tokens"] for row in second.rows} == {"3", "4"}


def check_run(run: ClosedRun, asked: dict[str, object]) -> None:
    """A run directory tells what the form said, and its files agree with each other."""
    assert {name: run.facts["options"][name] for name in asked} == asked
    assert run.facts["users"] == asked["num_users"]
    assert run.facts["cache_state"] == "unknown"
    assert {row["outcome"] for row in run.rows} == {"ok"}
    assert run.summary["outcomes"]["ok"] == len(run.rows) > 0
    contexts = {row["context_id"] for row in run.rows}
    assert len(contexts) == asked["contexts"] == run.summary["diversity"]["distinct_contexts"]


@pytest.mark.usefixtures("ui")
async def test_figures_on_the_page_and_in_the_download_keep_their_fractions(
    swarm: SwarmPage, tmp_path: Path
) -> None:
    await swarm.start(users=2, spawn_rate=2, output_tokens=5)
    await swarm.count_above(ENDPOINT, 20)
    shares = await swarm.cells("Cached-token share (%)")
    expected = 100 * CACHED_TOKENS / PROMPT_TOKENS
    assert float(shares["Min (ms)"]) == float(shares["Max (ms)"]) == expected
    ends = []
    for row in ("TTFT (ms)", "TPOT (ms)"):
        cells = await swarm.cells(row)
        assert float(cells["Min (ms)"]) <= float(cells["Median (ms)"]) <= float(cells["Max (ms)"])
        ends += [cells["Min (ms)"], cells["Max (ms)"]]
    assert has_fractions(ends)
    await swarm.stop()

    await swarm.page.get_by_role("tab", name="Download Data").click()
    async with swarm.page.expect_download() as download:
        await swarm.page.get_by_role("link", name="Download requests CSV").click()
    path = tmp_path / "requests.csv"
    await (await download.value).save_as(path)
    with path.open(newline="") as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    assert {ENDPOINT, *OUR_ROWS, "Aggregated"} == rows.keys()
    assert int(rows["TTFT (ms)"]["Request Count"]) == int(rows["Aggregated"]["Request Count"]) > 20
    assert has_fractions([rows["TTFT (ms)"][column] for column in ("50%", "66%", "75%", "80%")])


def has_fractions(figures: list[str]) -> bool:
    """Whether they are not all whole: one of them may be by chance."""
    return not all(float(figure).is_integer() for figure in figures)


async def test_what_cannot_be_run_is_refused_in_the_form(
    swarm: SwarmPage, ui: UiProcess, host: OpenAiHost
) -> None:
    assert "--zipf -1" in await swarm.refusal(zipf=-1)
    assert "--contexts is empty" in await swarm.refusal(zipf=0, contexts="")
    assert "--contexts '2.5'" in await swarm.refusal(contexts=2.5)
    assert "'nope'" in await swarm.refusal(contexts=5, model="nope")
    assert "--rate" in await swarm.refusal(model="", arrivals="poisson")
    assert "0 users" in await swarm.refusal(arrivals="closed", users=0)
    assert "refused" in await swarm.refusal(users=1, host="http://127.0.0.1:1")
    await check_reload(swarm)
    await expect(swarm.page.get_by_text("ready", exact=True)).to_be_visible()
    assert not host.bodies
    assert not ui.runs()

    await swarm.start(host=host.url)
    await swarm.count_above(ENDPOINT, 0)


async def check_reload(swarm: SwarmPage) -> None:
    """What was typed is still there, also where nothing was started with it."""
    await swarm.fill(users=0, output_tokens="3-4", arrivals="poisson", spawn_rate=7)
    await swarm.field("keep_cache").check()
    for _ in range(2):  # what came back is kept as well
        await swarm.page.reload()
        await swarm.open_parameters()
        typed = {"users": "0", "output_tokens": "3-4", "arrivals": "poisson", "spawn_rate": "7"}
        for option, value in {**typed, "host": "http://127.0.0.1:1", "contexts": "5"}.items():
            await expect(swarm.field(option)).to_have_value(value)
        await expect(swarm.field("keep_cache")).to_be_checked()
    await swarm.fill(users=1, arrivals="closed")


@pytest.mark.usefixtures("ui")
async def test_every_label_of_the_form_can_be_read_to_its_end(swarm: SwarmPage) -> None:
    await swarm.open_parameters()
    labels = await swarm.form.locator("label").evaluate_all(
        "labels => labels.filter(label => label.innerText)"
        ".map(label => [label.innerText, label.scrollWidth > label.clientWidth])"
    )
    assert len(labels) == 3 + len(FORM_OPTIONS)  # users, ramp up and host are Locust's own
    assert [text for text, is_cut in labels if is_cut] == []
    names = await swarm.form.locator("[name]").evaluate_all("all => all.map(one => one.name)")
    assert [name for name in map(snake_case, names) if name in FORM_OPTIONS] == [*FORM_OPTIONS]


def snake_case(field: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", field)


async def test_an_open_loop_without_users_has_no_cap(
    swarm: SwarmPage, ui: UiProcess, host: OpenAiHost
) -> None:
    await swarm.open_parameters()
    label = swarm.form.locator("label", has_text="Arrivals (")
    await expect(label).to_contain_text("users cap those in flight, 0 = no cap")
    # Two seconds a reply: 20 arrivals a second need about forty requests at once. Of few tokens,
    # as a host that does not keep up has more and more to finish after the stop.
    host.token_s = 0.1
    await swarm.start(users=0, arrivals="poisson", rate=20, output_tokens=20)
    await swarm.count_above("TTFT (ms)", 20)
    await swarm.button("Edit").click()
    await swarm.fill(users=3)
    await swarm.button("Update").click()
    await until(lambda: "cap of an open loop cannot come or go" in ui.log.read_text())
    await swarm.button("Stop").click()
    await stopping(swarm, ui)
    await expect(swarm.button("New")).to_be_visible()
    run = await ui.closed_run(0)
    assert host.most_in_flight > 4
    assert (run.facts["users"], run.facts["options"]["rate"]) == (0, "20")
    assert {row["outcome"] for row in run.rows} == {"ok"}


async def test_reset_counts_from_nothing_and_keeps_the_rows(
    swarm: SwarmPage, ui: UiProcess
) -> None:
    await swarm.start(users=2, spawn_rate=2, output_tokens=2)
    before = await swarm.count_above(ENDPOINT, 150)
    async with swarm.page.expect_response("**/stats/reset"):
        await swarm.button("Reset").click()
    await swarm.stop()
    run = await ui.closed_run(0)
    assert run.summary["outcomes"]["ok"] <= len(run.rows) - before
    assert await swarm.count(ENDPOINT) == await swarm.count("TTFT (ms)")
    assert await swarm.count(ENDPOINT) == run.summary["outcomes"]["ok"]


async def test_users_can_be_added_but_options_of_a_running_swarm_stay(
    swarm: SwarmPage, ui: UiProcess, host: OpenAiHost
) -> None:
    await swarm.start(users=1, contexts=5, output_tokens=20)
    await swarm.page.reload()
    await swarm.button("Edit").click()
    await swarm.open_parameters()
    await expect(swarm.field("contexts")).to_have_value("5")  # the command line said 8
    await swarm.fill(users=4, spawn_rate=4, zipf=2)
    await swarm.button("Update").click()
    await expect(swarm.form).to_be_hidden()
    before = await swarm.count(ENDPOINT)
    await swarm.count_above(ENDPOINT, before + 20)
    await swarm.page.get_by_role("tab", name="Logs").click()
    await expect(swarm.page.get_by_text("--zipf of a running swarm cannot change")).to_be_visible()
    await swarm.stop()
    assert host.most_in_flight == 4
    assert len({row["context_id"] for row in (await ui.closed_run(0)).rows}) == 5


async def test_one_swarm_at_a_time_and_the_page_sees_a_long_drain_end(
    swarm: SwarmPage, ui: UiProcess, host: OpenAiHost
) -> None:
    host.models_s = 1.0
    await swarm.fill(users=2, spawn_rate=2, output_tokens=1400)  # seven seconds a reply
    await swarm.button("Start").click()
    await until(lambda: host.models_asked > 0)
    assert "wait for it" in await second_start(swarm, ui)
    await expect(swarm.button("Stop")).to_be_visible()
    await until(lambda: host.most_in_flight == 2)
    await swarm.button("Stop").click()
    await stopping(swarm, ui)
    await expect(swarm.button("New")).to_be_visible()
    run = await ui.closed_run(0)
    assert [row["outcome"] for row in run.rows] == ["ok", "ok"]
    assert len(ui.runs()) == 1


async def second_start(swarm: SwarmPage, ui: UiProcess) -> str:
    """What somebody else is told who starts a swarm now."""
    form: dict[str, str | float | bool] = {"user_count": "2", "spawn_rate": "2"}
    answer = await swarm.page.request.post(f"{ui.url}/swarm", form=form)
    return str((await answer.json())["message"])


async def stopping(swarm: SwarmPage, ui: UiProcess) -> None:
    """Wait until the swarm has begun to stop; before, a second start only sets its users."""
    async with asyncio.timeout(5):
        while "wait for it" not in await second_start(swarm, ui):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
