"""What is an engine and what a cache is said in the TOML, and so is how each names its counters."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.launch.kv_record import with_fs_tier
from loadgen.launch.target_run import swarm_facts
from loadgen.stats.server_counters import CACHE_FIGURES, ENGINE_FIGURES
from loadgen.stats.server_metrics import MetricsScraper
from loadgen.swarm.leading.watches import sources_of
from loadgen.targets.catalog import TargetSpec, load_catalog
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import start_target

ENGINE = Path(__file__).with_name("fake_engine.py")
CATALOG = f"""
[services.acme]
role = "engine"
argv = ["{{python}}", "{ENGINE}", "--port", "{{port}}", "--counters", "acme_", "--window", "4096"]
ready = "/health"
metrics = "/stats"
counters = "acme"

[services.shelf]
role = "cache"
argv = ["{{python}}", "{ENGINE}", "--port", "{{port}}", "--counters", "shelf_"]
ready = "/health"
metrics = "/stats"
counters = "shelf"

[services.aside]
argv = ["{{python}}", "{ENGINE}", "--port", "{{port}}"]
ready = "/health"

[counters.acme]
prompt_tokens = 'acme_in{{of="prompt"}}'
prefix_cache_hits = 'acme_in{{of="cache"}}'
running = "acme_at_work"

[counters.shelf]
l1_evicted_chunks = "shelf_at_work"

[targets.acme]
services = ["acme", "shelf", "aside"]

[targets.silent]
services = ["mute"]

[services.mute]
argv = ["{{python}}", "{ENGINE}", "--port", "{{port}}", "--window", "4096"]
ready = "/health"
"""


def catalog_of(folder: Path, text: str) -> dict[str, TargetSpec]:
    file = folder / "targets.toml"
    file.write_text(text)
    return load_catalog(file)


def roles(spec: TargetSpec) -> dict[str, str | None]:
    return {service.name: service.role for service in spec.services}


async def test_engine_and_cache_are_found_by_role_and_read_by_their_own_names(
    tmp_path: Path,
) -> None:
    settings = TargetSettings("m", stop_grace_s=0.5)
    spec = catalog_of(tmp_path, CATALOG)["acme"]
    async with start_target(spec, settings, tmp_path / "log") as target:
        facts = swarm_facts(target, settings)
        assert facts["url"] == target.url == facts["sources"]["engine"]["metrics_url"][:-6]
        assert facts["engine_pid"] == facts["pids"]["acme"][0]
        assert facts["sources"]["cache"]["pid"] == facts["pids"]["shelf"][0]
        async with MetricsScraper(sources_of(target.url, facts)) as scraper:
            sample = await scraper.scrape(1.0)
    assert (sample.reachable, sample.prompt_tokens, sample.running) == (True, 0, 2)
    assert sample.lmcache_l1_evicted_chunks == 2
    assert sample.kv_cache_usage is None
    assert (sample.engine_rss_mb or 0) > 5
    assert (sample.lmcache_rss_mb or 0) > 5


def swarm(folder: Path, target: str) -> tuple[Mapping[str, Any], str]:
    """The summary of a run on it, and what was printed."""
    catalog_of(folder, CATALOG)
    command = [sys.executable, "-m", "loadgen.cli.main", "run", "unordered", "--model", "m"]
    where = ["--targets", folder / "targets.toml", "--target", target, "--out", folder / "run"]
    small = ["--contexts", 2, "--context-tokens", 50, "--output-tokens", 2, "-u", 1, "-t", "2s"]
    words = [*command, *map(str, (*where, *small, "--max-lag-ms", 9999))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run" / "summary.json").read_text()), done.stdout


def test_the_summary_has_the_figures_of_an_engine_with_names_of_its_own(tmp_path: Path) -> None:
    summary, _ = swarm(tmp_path, "acme")
    assert summary["server"]["hit_rate"] == 0.25
    assert summary["server"]["peak_running"] == 2
    assert summary["server_note"] is None


def test_an_engine_without_counters_gets_a_sentence(tmp_path: Path) -> None:
    summary, printed = swarm(tmp_path, "silent")
    assert summary["server"]["hit_rate"] is None
    note = summary["server_note"]
    assert note.startswith("no figures of the engine: http://127.0.0.1:")
    assert "/metrics tells no vllm:prompt_tokens_total" in note
    assert note in printed
    report = [sys.executable, "-m", "loadgen.cli.main", "report", str(tmp_path / "run")]
    subprocess.run(report, check=True, capture_output=True, timeout=120)
    assert note in (tmp_path / "run" / "report.html").read_text()


SERVICES = """
[services.first]
argv = ["x"]
ready = "/"
reset = "/reset"

[services.second]
argv = ["x"]
ready = "/"

[services.third]
argv = ["x"]
ready = "/"

[targets.own]
services = ["first", "second", "third"]
"""


def test_without_a_role_the_last_is_the_engine_and_what_can_be_emptied_a_cache(
    tmp_path: Path,
) -> None:
    found = roles(catalog_of(tmp_path, SERVICES)["own"])
    assert found == {"first": "cache", "second": "service", "third": "engine"}


def test_the_engine_may_start_before_others(tmp_path: Path) -> None:
    text = SERVICES.replace("[services.second]", '[services.second]\nrole = "engine"')
    spec = catalog_of(tmp_path, text)["own"]
    assert roles(spec) == {"first": "cache", "second": "engine", "third": "service"}
    assert spec.engine.name == "second"


def test_files_of_before_mean_what_they_meant(tmp_path: Path) -> None:
    old = '[services.lmcache]\nargv = ["x"]\nready = "/"\nreset = "/clear"\n'
    spec = catalog_of(tmp_path, old)["vllm-lmcache"]
    assert roles(spec) == {"lmcache": "cache", "vllm": "engine"}
    shipped = load_catalog()["vllm-lmcache"]
    assert [each.series for each in spec.services] == [each.series for each in shipped.services]


def test_the_shipped_maps_name_every_figure() -> None:
    lmcache, vllm = load_catalog()["vllm-lmcache"].services
    assert set(vllm.series) == {*ENGINE_FIGURES, "cache_info"}
    assert set(lmcache.series) == set(CACHE_FIGURES)


def test_kv_is_recorded_from_whatever_service_is_the_cache(tmp_path: Path) -> None:
    catalog = catalog_of(tmp_path, CATALOG)
    _, cache, _ = with_fs_tier(catalog["acme"], tmp_path).services
    assert "--l2-adapter" in cache.argv
    with pytest.raises(UsageError, match="stores no KV outside the engine"):
        with_fs_tier(catalog["silent"], tmp_path)


BAD = {
    "an unknown role": (
        SERVICES.replace("[services.first]", '[services.first]\nrole = "store"'),
        "[services.first] role: unknown role 'store', choose one of engine, cache, router, service",
    ),
    "two engines": (
        SERVICES.replace('ready = "/"', 'ready = "/"\nrole = "engine"'),
        "[targets.own] services: first and second and third with role 'engine'",
    ),
    "no engine": (
        SERVICES.replace('ready = "/"', 'ready = "/"\nrole = "service"'),
        "[targets.own] services: no service with role 'engine'",
    ),
    "unknown counters": (
        SERVICES.replace("[services.first]", '[services.first]\ncounters = "acme"'),
        "[services.first] counters: unknown counters 'acme', known are vllm, lmcache, none",
    ),
    "an unknown figure": (
        '[counters.acme]\ntokens = "acme_tokens"',
        "[counters.acme] tokens: unknown key, choose one of prompt_tokens",
    ),
    "no series": (
        "[counters.acme]\nrunning = 'acme at work'",
        "[counters.acme] running: 'acme at work' is no series: write name or name{",
    ),
    "no text": ("[counters.acme]\nrunning = 1", "[counters.acme] running: must be a string"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_clear_line(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(UsageError) as error:
        catalog_of(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
