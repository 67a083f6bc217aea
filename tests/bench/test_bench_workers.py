"""The pure parts of `make bench-workers`."""

import json
import random
from pathlib import Path

import pytest
from children import Metered
from table import Results
from workers_figures import SHARES, first_cpu_s_per_1000, least_share, percentile_error
from workers_musts import MUSTS, ONE, SCENARIO, TWO, all_met, report

from loadgen.stats.sketch import Sketch


def run_of(folder: Path, values: list[float], summarised: list[float]) -> list[dict[str, str]]:
    """A directory whose summary is made of other values than its rows, where they differ."""
    sketch = Sketch()
    sketch.add_many(summarised)
    figures = {name: sketch.quantile(share) for name, share in SHARES.items()}
    summary = {"metrics": {"ttft_ms": figures, "e2e_ms": figures}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return [
        {"outcome": "ok", "worker": str(n % 2), "ttft_ms": str(value), "e2e_ms": str(value)}
        for n, value in enumerate(values)
    ]


def test_a_summary_that_has_lost_a_worker_is_found(tmp_path: Path) -> None:
    random.seed(11)
    values = [random.lognormvariate(2, 1) * (1 + n % 2) for n in range(4000)]
    assert percentile_error(run_of(tmp_path, values, values), tmp_path) <= 0.005
    assert percentile_error(run_of(tmp_path, values, values[::2]), tmp_path) > 0.1


def test_the_share_of_the_slowest_worker() -> None:
    rows = [{"worker": name} for name in "0001"]
    assert least_share(rows, 2) == pytest.approx(0.5)
    assert least_share(rows, 3) == 0


def test_the_masters_cost_is_that_of_the_steady_part() -> None:
    # 100 requests a second for 4 s after the first at 10 s, of which the master takes 1 %.
    done = [int((10 + (n + 1) / 100) * 1e9) for n in range(400)]
    own = [(9.5, 0.0), (10.0, 0.5), (14.0, 0.54)]
    metered = Metered(9.5, own_cpu=own)
    found = first_cpu_s_per_1000(metered, {"first_post_ns": int(10e9), "done_ns": done})
    assert found == pytest.approx(0.1)


def results(two_cost_s: float) -> Results:
    found = Results()
    perfect = {"least_share": 1.0, "percentile_error": 0.004, "rows_apart": 0.0}
    for case, cost_s in (("one process", 0.09), (ONE, 0.1), (TWO, two_cost_s)):
        figures = {"requests_per_s": 9000.0, "cpu_s_per_1000": cost_s}
        costs = {"first_cpu_s_per_1000": 0.01, "server_cpu_s_per_1000": 0.02}
        found.add(SCENARIO, case, {**figures, **costs, **perfect})
    return found


def test_workers_that_cost_more_together_miss_a_must() -> None:
    good, dear = results(0.11), results(0.13)
    assert all_met(good)
    assert not all_met(dear)
    assert report(good).endswith(f"musts met: {len(MUSTS)} of {len(MUSTS)}\n")
    assert "| CPU s per 1000 requests, whole swarm | 0.09 (0.90) | 0.1 (1.00) |" in report(dear)
