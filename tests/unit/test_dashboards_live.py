"""The live tab without a browser: what it keeps, what it answers, and what it refuses."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, render_template_string
from flask.testing import FlaskClient

from dashboards.live_tab import locust_page, pages
from dashboards.live_tab.live_view import LiveView
from dashboards.live_tab.sampler import WINDOW_S, Reading, Sampler, Window
from dashboards.live_tab.series import COLUMNS, LiveSeries
from dashboards.live_tab.served import ContextTable, Served, Timeline, served
from loadgen.compare.run_gate import judge_run, parse_run_gate
from loadgen.record import RequestRecord
from loadgen.runs.csv_log import to_csv
from loadgen.runs.directory import RunDirectory
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.server_counters import ServerAccumulator, ServerSample
from loadgen.stats.tally import Tally
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.sending.ledger import Row, RunLedger, WorkerLedger

HOSTILE = ("<img src=x onerror=alert(1)>", "=cmd()", "'=cmd()", 'a,"b')


def record(number: int, context_id: str, **more: Any) -> RequestRecord:
    """A request of 100 prompt tokens, 64 of them cached, that took `number` ms to its token."""
    base = RequestRecord(
        request_id=str(number),
        worker="0",
        user="u",
        context_id=context_id,
        question_id="q",
        repeat=False,
        scheduled_s=float(number),
        sent_s=float(number),
        first_token_s=number + 0.5,
        end_s=number + 0.75,
        ttft_ms=float(number),
        itl_mean_ms=None,
        itl_p50_ms=None,
        itl_p95_ms=None,
        itl_p99_ms=None,
        itl_max_ms=None,
        tpot_ms=None,
        e2e_ms=100.0,
        prompt_tokens=100,
        cached_tokens=64,
        output_tokens=8,
        outcome="ok",
        status=200,
        error="",
    )
    return replace(base, **more)


def requests(count: int, contexts: int) -> list[Served]:
    rows: list[Row] = [(record(at, f"c{at % contexts}"), []) for at in range(count)]
    return list(served(rows))


def figures(**values: float) -> tuple[float | None, ...]:
    return tuple(values.get(name) for name in COLUMNS)


# ---- series ------------------------------------------------------------------------------------


def test_an_hour_fits_and_keeps_its_span_its_means_and_its_peaks() -> None:
    series = LiveSeries()
    for second in range(3600):
        peak = 900.0 if second == 2000 else 5.0
        series.add(figures(at_s=second, requests_per_s=second % 2, ttft_p99_ms=peak))
    rows = series.since(0).rows
    assert len(rows) == 900
    assert series.step_s == 4
    at_s, rates, p99 = (
        [row[COLUMNS.index(name)] for row in rows]
        for name in ("at_s", "requests_per_s", "ttft_p99_ms")
    )
    assert at_s == list(range(3, 3600, 4))
    assert set(rates) == {0.5}
    assert p99.count(900.0) == 1
    assert set(p99) == {5.0, 900.0}


def test_increments_add_up_to_the_whole_also_with_an_odd_row_left_over() -> None:
    series, seen, step_s = LiveSeries(most_rows=10), [], 1
    for second in range(100):
        series.add(figures(at_s=second))
        assert len(series.since(0).rows) <= 10
        if series.step_s != step_s:
            seen, step_s = [], series.step_s
        first, new = series.since(len(seen))
        assert first == len(seen)
        seen += new
    assert seen == series.since(0).rows
    assert [row[0] for row in seen] == list(range(step_s - 1, 100, step_s))


def test_unknown_seconds_stay_unknown() -> None:
    series = LiveSeries(most_rows=2)
    for value in (None, None, 3.0, None):
        series.add(figures(running=value) if value else figures())
    at = COLUMNS.index("running")
    assert [row[at] for row in series.since(0).rows] == [None, 3.0]


# ---- window ------------------------------------------------------------------------------------


def test_rates_and_quantiles_are_of_the_last_seconds_only() -> None:
    tally, window = Tally(), Window()
    for second in range(20):
        late = second >= 10
        for ttft_ms in (10.0, 1000.0, 1000.0, 1000.0) if late else (10.0,) * 4:
            tally.add(record(0, "c", ttft_ms=ttft_ms), [2.0, 2.0, 0.0] if late else [0.0] * 3)
        tally.add(record(0, "c", outcome="timeout"))
        window.add(Reading.take(tally, float(second)))
    *known, p99 = window.quantiles("ttft_ms")
    assert known == pytest.approx([1000.0] * 2, rel=0.005)
    assert p99 is None, "of 20 replies"
    *known, p99 = window.quantiles("itl_ms")
    assert known == pytest.approx([2.0] * 2, rel=0.005)
    assert p99 is None
    assert window.per_s("ok") == 4
    assert window.per_s("failed") == 1
    assert window.per_s("output_tokens") == 32
    assert window.share("cached_share") == pytest.approx(0.64)


def test_a_second_without_replies_has_no_latency() -> None:
    tally, window = Tally(), Window()
    tally.add(record(7, "c"))
    for second in range(WINDOW_S + 2):
        window.add(Reading.take(tally, float(second)))
    assert window.quantiles("ttft_ms") == (None, None, None)
    assert window.share("cached_share") is None
    assert window.per_s("ok") == 0


def test_goodput_is_that_of_the_last_seconds() -> None:
    tally, window = Tally(), Window()
    window.add(Reading.take(tally, 0.0))
    tally.add(record(0, "c"))
    window.add(Reading.take(tally, 1.0))
    assert window.share("goodput_share") is None, "nothing was held against an objective"
    for second in range(2, 20):
        tally.add(record(0, "c", slo_met=second < 12))
        tally.add(record(0, "c", slo_met=True))
        window.add(Reading.take(tally, float(second)))
    assert window.share("goodput_share") == 0.5


# ---- requests ----------------------------------------------------------------------------------


def test_rows_of_this_process_and_the_text_of_a_workers_tell_the_same() -> None:
    rows: list[Row] = [(record(at, name), []) for at, name in enumerate(HOSTILE)]
    rows += [
        (record(5, "true", rag_context_id="found", retrieval_ms=3.0), []),
        (record(6, "true", rag_context_id="", retrieval_ms=3.0), []),
        (record(7, "c", outcome="timeout", first_token_s=None, ttft_ms=None, error="@late"), []),
        (record(8, "c", outcome="cancelled"), []),
    ]
    own = list(served(rows))
    assert [each.context_id for each in own] == [*HOSTILE, "found", "", "c"]
    assert own[-1].error == "@late"
    sent: list[dict[str, Any]] = []
    worker = WorkerLedger(sent.append)
    worker.add(rows)
    worker.flush()
    assert list(served(sent[0]["rows"])) == own


def test_the_timeline_forgets_the_oldest_requests_and_their_contexts() -> None:
    timeline = Timeline(most_marks=10)
    for request in requests(40, contexts=40):
        timeline.add(request)
    first, marks, names = timeline.since(0)
    assert first == 30
    assert [mark[0] for mark in marks] == list(range(30, 40))
    assert names == {number: f"c{number}" for number in range(30, 40)}
    assert timeline.number("c5") is None
    assert timeline.since(38) == (38, marks[8:], {38: "c38", 39: "c39"})
    assert timeline.since(10**9) == (40, [], {})


def test_contexts_keep_the_number_of_their_first_appearance() -> None:
    timeline = Timeline()
    for name in ("b", "a", "b", "c", "a"):
        timeline.add(Served("0", name, 0.1, 0.2, 5.0, 10, None, "ok", ""))
    first, marks, names = timeline.since(0)
    assert first == 0
    assert [mark[0] for mark in marks] == [0, 1, 0, 2, 1]
    assert [mark[3] for mark in marks] == [None] * 5
    assert names == {0: "b", 1: "a", 2: "c"}


def test_every_request_is_in_the_table_and_the_most_frequent_contexts_stand_first() -> None:
    table = ContextTable(most_contexts=5)
    for request in requests(60, contexts=8):
        table.add(request)
    for _ in range(3):
        table.add(requests(4, contexts=8)[3])
    top, others = table.top(2)
    assert [(name, row.requests) for name, row in top] == [("c3", 11), ("c0", 8)]
    assert table.cached_share(top[0][1]) == pytest.approx(0.64)
    assert sum(row.requests for _, row in top) + others.requests == 63
    assert others.ttft_ms.count == others.requests


def test_a_reply_that_does_not_say_took_nothing_from_a_cache_where_the_host_told_of_others() -> (
    None
):
    """Only every fourth reply says, as of a host that leaves a 0 out: one share everywhere."""
    told = [replace(each, cached_tokens=None) for each in requests(3, contexts=4)]
    told += requests(4, contexts=4)[3:]
    timeline, table = Timeline(), ContextTable()
    for request in told:
        timeline.add(request)
        table.add(request)
    assert [mark[3] for mark in timeline.since(0).marks] == [0, 0, 0, 0.64]
    top, _ = table.top(4)
    assert {name: table.cached_share(row) for name, row in top} == pytest.approx(
        {"c0": 0, "c1": 0, "c2": 0, "c3": 0.64}
    )
    silent = ContextTable()
    silent.add(told[0])
    assert silent.cached_share(silent.top(1)[0][0][1]) is None


@pytest.mark.parametrize(("cached", "share"), [(100_000, 1.0), (99_999, 0.9999), (64_000, 0.64)])
def test_only_a_prompt_that_was_cached_whole_is_told_as_such(cached: int, share: float) -> None:
    timeline = Timeline()
    (request,) = requests(1, contexts=1)
    timeline.add(replace(request, prompt_tokens=100_000, cached_tokens=cached))
    assert timeline.since(0).marks[0][3] == share


# ---- routes ------------------------------------------------------------------------------------


class Hook(list[Callable[..., None]]):
    add_listener = list.append

    def fire(self) -> None:
        for listener in self:
            listener()


class Site:
    """Locust's web app around the tab of a leader that has a run directory."""

    def __init__(self, folder: Path, login: bool = False) -> None:
        self.directory = RunDirectory(folder)
        self.events = SimpleNamespace(
            **{name: Hook() for name in HOOKS},
        )
        self.leader: Any = SimpleNamespace(
            environment=SimpleNamespace(
                events=self.events,
                reset_stats=False,
                parsed_options=SimpleNamespace(web_base_path=None),
                runner=SimpleNamespace(user_count=3),
            ),
            run=None,
            current=None,
            listener=None,
        )
        self.login = login
        self.template_args: dict[str, Any] = {"extended_tabs": [{"title": "Own", "key": "own"}]}
        self.app = Flask(__name__)
        page = Blueprint("locust", __name__)
        page.add_url_rule("/", "index", lambda: "<html><body>Locust</body></html>")
        self.app.register_blueprint(page)
        self.view = LiveView(self.leader)
        self.view.watch()
        locust_page.LocustPage(self.leader, self).extend()
        pages.Pages(self.view, self).add()

    def auth_required_if_enabled(self, view: Callable[..., Response]) -> Callable[..., Response]:
        @wraps(view)
        def guarded(*args: Any, **kwargs: Any) -> Response:
            return Response("login", 401) if self.login else view(*args, **kwargs)

        return guarded

    def start(self) -> None:
        """A swarm starts, as the leader does it; no greenlet samples it."""
        options = SimpleNamespace(max_lag_ms=100.0, batching=None, slo=None)
        facts = SimpleNamespace(has_metrics=True, is_vllm=True, version="0.11.0")
        self.leader.run = SimpleNamespace(
            preparation=SimpleNamespace(
                options=options, batched=False, facts=facts, cache_state="unknown", gate=()
            ),
            gate=None,
            plan=SimpleNamespace(url="http://127.0.0.1:8000", model="demo"),
            supervisor=Supervisor({}, None, ()),
            directory=self.directory,
            ledger=RunLedger(self.directory, self.leader.listener),
            server=SimpleNamespace(recent=[], whole=ServerAccumulator()),
            workers=None,
            host_died=False,
            now_s=0.0,
            users=3,
        )

    def client(self) -> FlaskClient:
        return self.app.test_client()

    def live(self, **query: int) -> dict[str, Any]:
        answer = self.client().get("/kvswarm/live", query_string=query)
        assert answer.status_code == 200
        return dict(answer.json or {})


HOOKS = ("test_start", "test_stop", "reset_stats", "spawning_complete")
ROUTES = (
    "live",
    "static/live.js",
    "static/form.js",
    "static/downloads.js",
    "static/live.css",
    "csv/requests.csv",
    "csv/contexts.csv",
    "report.html",
    "finished",
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.directory.close()


def rows(*names: str) -> list[Row]:
    return [(record(at, name), []) for at, name in enumerate(names)]


def test_the_page_gets_the_script_and_keeps_what_others_added(site: Site) -> None:
    assert locust_page.SCRIPTS in site.client().get("/").text
    form, live = re.findall(r'src="\.(.*?)"', locust_page.SCRIPTS)
    assert "templateArgs" in site.client().get(form).text
    assert "import" in site.client().get(live).text
    assert [tab["key"] for tab in site.template_args["extended_tabs"]] == ["own", locust_page.KEY]
    assert len(site.template_args["extended_csv_files"]) == 6


def form_of(site: Site) -> dict[str, Any]:
    """What a page that is loaded now is told of its form: fields in their order, and users."""
    names = ("zipf", "own", "contexts", "arrivals")
    fields = {name: {"default_value": "of the command line"} for name in names}
    args = {"extra_options": fields, "num_users": 0}
    with site.app.test_request_context():
        text = render_template_string("{{ template_args | tojson }}", template_args=args)
    return dict(json.loads(text))


def test_a_form_has_the_values_of_the_last_swarm_in_its_own_order(site: Site) -> None:
    given = site.leader.environment.parsed_options
    vars(given).update(contexts=8, zipf=0.0, arrivals="closed")
    fields = form_of(site)["extra_options"]
    assert {name: field["default_value"] for name, field in fields.items()} == {
        "arrivals": "closed",
        "contexts": 8,
        "zipf": 0.0,
        "own": "of the command line",
    }
    assert [*fields] == ["arrivals", "contexts", "zipf", "own"]
    given.contexts = 5
    assert form_of(site)["extra_options"]["contexts"]["default_value"] == 5


def test_a_form_has_what_the_running_swarm_has_and_not_what_it_refused(site: Site) -> None:
    site.leader.environment.parsed_options.zipf = 2.0
    assert form_of(site)["num_users"] == 0
    site.start()
    site.leader.current = SimpleNamespace(plan=SimpleNamespace(options={"zipf": 1.0}))
    assert form_of(site)["extra_options"]["zipf"]["default_value"] == 1.0
    assert form_of(site)["num_users"] == "0"


def test_a_page_gets_only_what_it_has_not_seen(site: Site) -> None:
    site.start()
    site.leader.run.ledger.add(rows("a", "b", "a"))
    site.view.series.add(site.view.sampler.take())
    first = site.live()
    assert [mark[0] for mark in first["marks"]] == [0, 1, 0]
    assert first["names"] == {"0": "a", "1": "b"}
    assert len(first["rows"]) == 1
    known = {"epoch": first["epoch"], "step_s": 1, "since": 1, "mark": 3}
    nothing = site.live(**known)
    assert (nothing["rows"], nothing["marks"], nothing["names"]) == ([], [], {})
    site.leader.run.ledger.add(rows("c"))
    assert [mark[0] for mark in site.live(**known)["marks"]] == [2]
    assert len(site.live(**{**known, "epoch": 1})["marks"]) == 4
    assert [row[:3] for row in first["contexts"]] == [["a", 0, 2], ["b", 1, 1]]


def test_rows_of_a_worker_that_cannot_be_read_leave_those_of_others(site: Site) -> None:
    site.start()
    for text in ("a\rb,c\n", "a,b\n", to_csv([["x"] * 40])):
        site.leader.listener(text)
    site.leader.run.ledger.add(rows("a"))
    assert list(site.live()["names"].values()) == ["a"]


def test_reset_and_restart_begin_anew_and_the_end_keeps_the_last_figures(site: Site) -> None:
    site.start()
    site.leader.run.ledger.add(rows("a"))
    first = site.live()["epoch"]
    site.events.test_stop.fire()
    assert len(site.live()["marks"]) == 1
    site.events.reset_stats.fire()
    second = site.live()
    assert (second["marks"], second["contexts"]) == ([], [])
    site.leader.run.ledger.add(rows("b"))
    site.start()
    site.leader.run.ledger.add(rows("c"))  # before Locust has told anybody of the start
    site.events.test_start.fire()
    third = site.live()
    assert list(third["names"].values()) == ["c"]
    assert len({first, second["epoch"], third["epoch"]}) == 3


def test_after_a_reset_another_sampler_reads_the_swarm(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    site.events.test_start.fire()
    taken: list[Sampler] = []
    monkeypatch.setattr(Sampler, "take", lambda sampler: taken.append(sampler))
    monkeypatch.setattr(LiveSeries, "add", lambda *_: None)
    before = site.view.sampler

    def sleep(_: float) -> None:
        if len(taken) == 2:
            raise StopIteration
        site.events.reset_stats.fire()

    monkeypatch.setattr("dashboards.live_tab.live_view.gevent.sleep", sleep)
    with pytest.raises(StopIteration):
        site.view._sample_for_ever()
    assert taken[0] is before
    assert taken[1] is site.view.sampler is not before


def test_the_seconds_and_users_of_a_long_and_large_swarm_are_whole(site: Site) -> None:
    site.start()
    site.leader.run.now_s, site.leader.run.users = 20_003.2, 12_345
    assert Sampler(site.leader.run).take()[:2] == (20_003.2, 12_345)


@pytest.mark.parametrize("name", ["epoch", "step_s", "since", "mark"])
def test_nonsense_is_refused_with_a_sentence(site: Site, name: str) -> None:
    for text in ("-1", "1.5", "x", "", "٣", "9" * 16, "1e3"):
        answer = site.client().get("/kvswarm/live", query_string={name: text})
        assert answer.status_code == 400
        assert answer.text.startswith(f"{name} must be a whole number from 0, not ")
        assert answer.mimetype == "text/plain"


def test_an_answer_stays_small_whatever_happens(site: Site) -> None:
    site.start()
    many = [f"context-{number}" for number in range(6000)]
    site.leader.run.ledger.add(rows(*many))
    for _ in range(2000):
        site.view.series.add(tuple(1234.5 for _ in COLUMNS))
    answer = site.client().get("/kvswarm/live")
    assert len(answer.data) < 600_000
    assert answer.json is not None
    assert len(answer.json["contexts"]) == 51
    assert sum(row[2] for row in answer.json["contexts"]) == 6000


def test_everything_is_behind_locusts_login(tmp_path: Path) -> None:
    client = Site(tmp_path, login=True).client()
    assert {client.get(f"/kvswarm/{route}").status_code for route in ROUTES} == {401}


def test_a_gate_is_told_with_its_limits_and_at_the_end_with_what_became_of_each(
    site: Site,
) -> None:
    site.start()
    site.events.test_start.fire()
    run = site.leader.run
    limits = parse_run_gate("requests_per_s>=0, errors<=1%", False, False)
    run.preparation.gate = limits
    assert ["Gate", "requests_per_s>=0, errors<=1%"] in site.live()["about"]
    assert site.live()["warnings"] == []
    run.gate = judge_run(limits, Tally(), 1.0, None)
    about = dict(site.live()["about"])
    assert about["✗ errors<=1%"] == "not known: no request was finished"
    assert site.live()["warnings"] == ["Gate failed: 0 of 2 met."]


def test_what_cannot_be_downloaded_says_why(site: Site, tmp_path: Path) -> None:
    def said(name: str) -> str:
        answer = site.client().get(f"/kvswarm/csv/{name}.csv")
        assert answer.status_code == 404
        return answer.text

    assert "no swarm has run yet" in said("requests")
    assert "there is no table 'run'" in said("run")
    site.start()
    assert "send no batches" in said("batches")
    for path in tmp_path.glob("*.csv"):
        path.unlink()
    assert said("requests").strip() == f"{tmp_path / 'requests.csv'} is no longer there"
    assert "send no batches" in said("batches")
    site.leader.run.directory = None
    assert "--out DIR" in said("requests")


def test_a_table_that_holds_nothing_is_named_with_the_reason(site: Site) -> None:
    def reasons() -> dict[str, str]:
        return dict(site.client().get("/kvswarm/tables").json or {})

    assert set(reasons().values()) == {"no swarm has run yet: start one, then download its tables"}
    site.start()
    assert "send no batches" in reasons().pop("batches")
    assert set(reasons().values()) - {reasons()["batches"]} == {"no rows yet"}
    site.leader.run.ledger.add(rows("a", "b"))
    assert {name for name, why in reasons().items() if not why} == {"requests", "contexts"}


def test_a_report_is_made_of_a_finished_swarm_that_keeps_files(site: Site, tmp_path: Path) -> None:
    def refused() -> str:
        answer = site.client().get("/kvswarm/report.html")
        assert answer.status_code == 404
        told = dict(site.client().get("/kvswarm/finished").json or {})
        assert answer.text.strip() == told["report"]
        return answer.text

    assert "no swarm has run yet" in refused()
    site.start()
    site.leader.current = site.leader.run
    assert "the swarm is not over" in refused()
    site.leader.current = None
    told = dict(site.client().get("/kvswarm/finished").json or {})
    assert told == {"directory": str(tmp_path), "report": ""}
    site.leader.run.ledger.add(rows("a", "b"))
    site.leader.run.ledger.flush()
    answer = site.client().get("/kvswarm/report.html")
    assert answer.status_code == 200
    assert "kvswarm report" in answer.text
    assert f"{tmp_path.name}_report.html" in answer.headers["Content-Disposition"]
    (tmp_path / "report.html").write_text("somebody's own")
    refusal = site.client().get("/kvswarm/report.html")
    assert (refusal.status_code, "is no report of kvswarm" in refusal.text) == (404, True)
    site.leader.run.directory = None
    assert "--out DIR" in refused()


def test_one_report_is_made_at_a_time(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    meanwhile: list[Any] = []

    def draw(*_: Any, **__: Any) -> SimpleNamespace:
        if not meanwhile:
            meanwhile.append(site.client().get("/kvswarm/report.html"))
        (tmp_path / "report.html").write_text("drawn")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pages.subprocess, "run", draw)
    asked = [site.client().get("/kvswarm/report.html") for _ in range(2)]
    assert [each.text for each in asked] == ["drawn"] * 2
    assert "is being made" in meanwhile[0].text


def test_a_folder_whose_name_is_no_utf8_is_told_and_downloaded_from(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    folder.mkdir()
    site = Site(folder)
    site.start()
    told = site.client().get("/kvswarm/finished")
    assert (told.status_code, dict(told.json or {})["directory"]) == (200, f"{tmp_path}/r?")
    answer = site.client().get("/kvswarm/csv/requests.csv")
    assert "r?_requests.csv" in answer.headers["Content-Disposition"]
    site.directory.close()


def test_tables_are_downloaded_whole_while_the_run_goes_on_and_hold_no_formula(
    site: Site, tmp_path: Path
) -> None:
    site.start()
    site.leader.run.ledger.add(rows(*HOSTILE))
    answer = site.client().get("/kvswarm/csv/requests.csv")
    told = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(told) == len(HOSTILE)
    assert answer.data == (tmp_path / "requests.csv").read_bytes()
    assert f"{tmp_path.name}_requests.csv" in answer.headers["Content-Disposition"]
    contexts = site.client().get("/kvswarm/csv/contexts.csv").text
    names = [row["context_id"] for row in csv.DictReader(io.StringIO(contexts))]
    assert sorted(names) == sorted(next(csv.reader([to_csv([[name]])]))[0] for name in HOSTILE)
    assert not any(name.startswith("=") for name in names)
    assert {row["ttft_p50_ms"] for row in csv.DictReader(io.StringIO(contexts))} == {
        *map(str, range(len(HOSTILE)))
    }


def sample(second: float, tokens: int, **more: float) -> ServerSample:
    """A busy engine that has worked on `tokens` prompt tokens until then."""
    return ServerSample(
        second,
        reachable=True,
        prompt_tokens=tokens,
        computed_prompt_tokens=tokens // 4,
        cached_prompt_tokens=tokens // 2,
        external_prompt_tokens=tokens // 4,
        **{"generation_tokens": 0, "kv_cache_usage": 0.5, "running": 2, "waiting": 7, **more},
    )


def watched(site: Site, *samples: ServerSample) -> None:
    server = site.leader.run.server
    for each in samples:
        server.whole.add(each)
        server.recent.append(each)


def test_the_engine_is_told_of_or_the_reason_why_not(site: Site) -> None:
    assert site.live()["engine_note"] is None
    site.start()
    site.events.test_start.fire()
    assert "does not answer" in site.live()["engine_note"]
    watched(site, ServerSample(0.0, reachable=True))
    assert "under a name that we know" in site.live()["engine_note"]
    site.leader.run.preparation.facts.has_metrics = False
    assert "has no /metrics" in site.live()["engine_note"]
    assert "vLLM" not in site.live()["engine_note"]
    watched(site, *(sample(second, 1000 * second) for second in range(8)))
    site.view.series.add(site.view.sampler.take())
    answer = site.live()
    assert answer["engine_note"] is None
    told = dict(zip(answer["columns"], answer["rows"][-1], strict=True))
    assert (told["hit_rate"], told["external_hit_rate"]) == (0.5, 0.25)
    assert (told["kv_cache_usage"], told["running"], told["waiting"]) == (0.5, 2, 7)


def test_shares_short_of_the_whole_are_not_told_as_all(site: Site) -> None:
    site.start()
    site.events.test_start.fire()
    busy = [
        replace(
            sample(at_s, 1),
            computed_prompt_tokens=at_s,
            cached_prompt_tokens=1e5 * at_s,
            external_prompt_tokens=0,
            kv_cache_usage=0.99996,
        )
        for at_s in (0.0, 1.0)
    ]
    watched(site, *busy)
    row = dict(zip(COLUMNS, site.view.sampler.take(), strict=True))
    assert (row["hit_rate"], row["kv_cache_usage"], row["running"]) == (0.9999, 0.9999, 2)


GAUGES = ("kv_cache_usage", "running", "waiting")
UNANSWERED = (ServerSample(4.0), ServerSample(7.0))


@pytest.mark.parametrize(
    ("late", "now_s", "age_s"),
    [
        ((), 5.0, None),  # two answers in a long step of the engine tell nothing new
        ((sample(4.0, 3000), sample(5.0, 3000)), 8.2, 5),
        (UNANSWERED, 9.0, 6),
        ((*UNANSWERED, sample(8.0, 3001)), 9.0, None),
    ],
)
def test_what_an_engine_held_some_time_ago_is_no_stall_of_this_moment(
    site: Site, late: tuple[ServerSample, ...], now_s: float, age_s: int | None
) -> None:
    site.start()
    site.events.test_start.fire()
    samples = [sample(second, 1000 * second) for second in range(4)]
    watched(site, *samples, *late)
    site.leader.run.now_s = now_s
    row = dict(zip(COLUMNS, site.view.sampler.take(), strict=True))
    assert [row[name] is None for name in GAUGES] == [age_s is not None] * 3
    assert site.live()["engine_age_s"] == age_s


def test_before_the_engine_has_begun_it_is_not_shown_as_idle(site: Site) -> None:
    site.start()
    site.events.test_start.fire()
    idle = {"running": 0, "waiting": 0, "kv_cache_usage": 0}
    watched(site, sample(0.0, 500, **idle), sample(1.0, 500, **idle))
    assert dict(zip(COLUMNS, site.view.sampler.take(), strict=True))["running"] is None
    watched(site, sample(2.0, 700))
    assert dict(zip(COLUMNS, site.view.sampler.take(), strict=True))["running"] == 2


def test_an_engine_without_counters_may_hold_the_same_for_long(site: Site) -> None:
    site.start()
    site.events.test_start.fire()
    watched(site, *(ServerSample(at, reachable=True, running=3) for at in range(9)))
    site.leader.run.now_s = 8.5
    assert dict(zip(COLUMNS, site.view.sampler.take(), strict=True))["running"] == 3


def test_the_page_says_what_is_loaded_and_how_large_its_cache_is(site: Site) -> None:
    assert site.live()["about"] == []
    site.start()
    site.events.test_start.fire()
    assert dict(site.live()["about"]) == {
        "Host": "http://127.0.0.1:8000",
        "Model": "demo",
        "Engine": "vLLM 0.11.0",
        "KV cache": "size not known",
    }
    facts = {"name": "vllm-context", "usable_tokens": 5120}
    site.leader.run.supervisor = Supervisor(facts, None, ())
    site.leader.run.preparation.cache_state = "cold"
    about = dict(site.live()["about"])
    assert about["Target"] == "vllm-context"
    assert about["KV cache"] == "5,120 tokens, cold at the start"


def test_a_saturated_client_and_a_dead_host_are_announced(site: Site) -> None:
    site.start()
    site.events.test_start.fire()
    site.view.sampler.take()
    assert site.live()["warnings"] == []
    for second in range(2):
        late = ClientSample(float(second), "0", 1.0, 200.0, 300.0, None, 1.0, 50.0)
        site.leader.run.ledger.add_sample(late)
    site.view.sampler.take()
    site.leader.run.host_died = True
    site.leader.run.workers = SimpleNamespace(lost=2)
    saturated, dead, lost = site.live()["warnings"]
    assert "the client was late" in saturated
    assert "host is gone" in dead
    assert "2 worker" in lost


# ---- what the browser gets ---------------------------------------------------------------------


STATIC = Path(pages.__file__).parent / "static"


def test_the_script_is_small_loads_nothing_from_elsewhere_and_sets_text_only() -> None:
    files = [path.read_text(encoding="utf-8") for path in STATIC.glob("*.[jc]s*")]
    text = "\n".join(files)
    assert len(text) < 32_000
    urls = set(re.findall(r"\w+://[^\"'`\s]+", text))
    assert urls == {"http://www.w3.org/2000/svg"}
    unsafe = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "import(")
    assert not [word for word in unsafe if word in text]


def test_contexts_have_the_colours_of_the_report_and_lines_the_first_of_them() -> None:
    def colours(name: str, text: str, begin: str, end: str) -> list[str]:
        (listed,) = re.findall(rf"{name}.*?= {begin}(.*?){end}", text, re.S)
        return re.findall(r"#[0-9a-f]{6}", listed)

    script = (STATIC / "elements.js").read_text(encoding="utf-8")
    style = STATIC.parents[1] / "figures" / "style.py"
    contexts, lines = (
        (
            colours(f"const {name}", script, r"\[", r"\]"),
            colours(f"\n{name}", style.read_text(encoding="utf-8"), r"\(", r"\n\)"),
        )
        for name in ("CONTEXT_COLOURS", "SERIES_COLOURS")
    )
    assert contexts[0] == contexts[1]
    assert lines[0] == lines[1][:3]
    assert len(contexts[0]) == 16
