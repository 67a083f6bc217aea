"""The catalogue of metrics: one entry, and a metric is everywhere; what it says is true."""

import json
import re
import subprocess
import sys
from pathlib import Path

from loadgen.record import BATCH_COLUMNS, COLUMNS
from loadgen.stats.metrics import CATALOG, COUNTS, summarized
from loadgen.stats.summary import summarize
from loadgen.stats.tally import Tally

ROOT = Path(__file__).parents[2]
ADDED = """
import json, sys
from loadgen.stats.metrics import CATALOG, Metric
CATALOG["gap_ms"] = Metric(
    name="gap_ms", meaning="the longest gap of each request", other_column="itl_max_ms",
    is_limited=True, defaults=("p95",), row="Gap (ms)", histogram="longest_gap",
)
from types import SimpleNamespace
from pathlib import Path
from locust.stats import RequestStats
from loadgen.compare.comparison import compare
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides
from loadgen.compare.formats import to_table
from loadgen.stats.metrics import limited
from loadgen.sweep.table import FIGURES
from loadgen.swarm.showing.stats_rows import KIND, log_records
from loadgen.swarm.showing.summary_words import summary_table
from dashboards.report.page import make_page
from dashboards.swarm_collector import _latencies
from loadgen.stats.tally import Tally
from tests.unit import report_runs
run = report_runs.write_report_run(Path(sys.argv[1]) / "one")
other = report_runs.write_report_run(Path(sys.argv[1]) / "other")
summary = json.loads((run / "summary.json").read_text())
tally, stats = Tally(), RequestStats()
log_records(stats, [(record, [1.0]) for record in report_runs.requests(3)])
runs = read_run(run), read_run(other)
print(json.dumps({
    "summary.json": "gap_ms" in summary["metrics"],
    "summary.csv": "gap_ms" in (run / "summary.csv").read_text(),
    "terminal": "gap_ms" in list(summary_table(summary).columns[0].cells),
    "Locust": stats.entries[("Gap (ms)", KIND)].num_requests == 3,
    "compare": "gap_ms.p95" in to_table(compare(Sides((runs[0],), (runs[1],)))),
    "report": "gap_ms" in make_page([run]),
    "Prometheus": any(each.name == "kvswarm_longest_gap_seconds" for each in _latencies(tally)),
    "sweep": "gap_p95_ms" in FIGURES,
    "objective": "itl_max_ms" in limited(),
}))
"""


def test_a_metric_is_everywhere_by_one_entry(tmp_path: Path) -> None:
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests/unit')!r}]\n"
    script = path + ADDED.replace("from tests.unit import", "import")
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [place for place, is_there in seen.items() if not is_there] == []


def test_what_the_catalogue_names_exists() -> None:
    for metric in CATALOG.values():
        columns = BATCH_COLUMNS if metric.source == "batch" else COLUMNS
        assert not metric.column or metric.column in columns
        assert {metric.part, metric.whole} - {""} <= set(COUNTS)
        assert metric.meaning
        assert metric.unit in ("ms", "s", "tokens", "1/s", "%")
    assert Tally().counts.keys() == COUNTS.keys()


def test_no_two_metrics_share_a_row_or_an_exported_name() -> None:
    for name in ("row", "histogram"):
        given = [getattr(each, name) for each in CATALOG.values() if getattr(each, name)]
        assert len(set(given)) == len(given)


def test_every_metric_of_a_summary_is_described() -> None:
    """Where would I add a metric? In the catalogue; the pages then ask for it."""
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=None, client_saturated=False
    )
    assert list(summary["metrics"]) == [each.name for each in summarized()]
    text = (ROOT / "docs/reference/columns.md").read_text() + (
        ROOT / "docs/reference/metrics.md"
    ).read_text()
    assert set(CATALOG) <= set(re.findall(r"`([a-z0-9_]+)`", text))
