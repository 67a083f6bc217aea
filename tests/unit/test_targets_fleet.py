"""Several engines behind a router: what is started, and which router with which settings."""

import json
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.launch.arguments import parse_run
from loadgen.launch.target_run import choose_targets
from loadgen.swarm.sending.labels import check_labels
from loadgen.targets import fleet
from loadgen.targets.catalog import load_catalog
from loadgen.targets.fleet import fleet_of, require_router
from loadgen.targets.own_routes import NAME_VARIABLE
from loadgen.targets.plan import ServicePlan, plan_services, port_names
from loadgen.targets.router import command, event_sources, haproxy_config
from loadgen.targets.settings import ROUTERS, TargetSettings

URLS = ["http://127.0.0.1:9001", "http://127.0.0.1:9002"]


def planned(name: str, settings: TargetSettings) -> list[ServicePlan]:
    spec = fleet_of(load_catalog()[name], settings)
    names = port_names(spec, settings, "cpu")
    ports = {name: 9000 + place for place, name in enumerate(names)}
    return plan_services(spec, settings, "cpu", ports)


def test_each_engine_has_a_name_a_port_and_a_key_of_its_own() -> None:
    *engines, router = planned("vllm-fleet", TargetSettings("org/m", replicas=3, args=("--x",)))
    assert [plan.name for plan in engines] == ["vllm-1", "vllm-2", "vllm-3"]
    assert [plan.env[NAME_VARIABLE] for plan in engines] == ["vllm-1", "vllm-2", "vllm-3"]
    for values in ([p.url for p in engines], [p.env["KVSWARM_ROUTES_KEY"] for p in engines]):
        assert len(set(values)) == 3
    assert all(plan.argv[-1] == "--x" for plan in engines)
    assert "--x" not in router.argv
    assert router.argv[-1].split(",") == [plan.url for plan in engines]


def test_requests_go_to_the_router_which_alone_is_open_to_others() -> None:
    settings = TargetSettings("org/m", host="0.0.0.0")
    first, second, router = planned("vllm-fleet", settings)
    assert (router.role, router.url.rpartition(":")[0]) == ("router", "http://127.0.0.1")
    assert router.argv[router.argv.index("--host") + 1] == "0.0.0.0"
    for engine in (first, second):
        assert engine.argv[engine.argv.index("--host") + 1] == "127.0.0.1"
        assert "loadgen.targets.own_routes.OwnRoutes" in engine.argv


def test_engines_share_one_lmcache() -> None:
    cache, first, second, router = planned("vllm-lmcache-fleet", TargetSettings("org/m"))
    assert [p.role for p in (cache, first, second, router)] == [
        *("cache", "engine", "engine", "router")
    ]
    ports = {
        json.loads(p.argv[p.argv.index("--kv-transfer-config") + 1])["kv_connector_extra_config"][
            "lmcache.mp.port"
        ]
        for p in (first, second)
    }
    assert ports == {int(cache.argv[cache.argv.index("--port") + 1])}


@pytest.mark.parametrize("policy", [None, "cache_aware", "kv_aware", "round_robin", "haproxy-hash"])
def test_engines_tell_token_ids_to_a_router_that_compares_them(policy: str | None) -> None:
    *engines, router = planned("vllm-fleet", TargetSettings("org/m", router=policy))
    for plan in engines:
        assert ("--enable-scale-out" in plan.argv) == (policy in (None, "cache_aware", "kv_aware"))
        assert ("--kv-events-config" in plan.argv) == (policy == "kv_aware")
    assert "--enable-scale-out" not in router.argv
    spec = load_catalog()["vllm"]
    settings = TargetSettings("org/m", router=policy)
    ports = dict.fromkeys(port_names(spec, settings, "cpu"), 1)
    (alone,) = plan_services(spec, settings, "cpu", ports)
    assert "--enable-scale-out" not in alone.argv


def test_a_router_that_goes_by_blocks_hears_each_engine_on_loopback() -> None:
    settings = TargetSettings("org/m", router="kv_aware", kv_tokens=1280)
    *engines, router = planned("vllm-fleet", settings)
    configs = [json.loads(p.argv[p.argv.index("--kv-events-config") + 1]) for p in engines]
    heads, ports = zip(*(each["endpoint"].rsplit(":", 1) for each in configs), strict=True)
    assert set(heads) == {"tcp://[::ffff:127.0.0.1]"}
    assert len({*ports, *(plan.url.rpartition(":")[2] for plan in engines)}) == 4
    assert router.argv[-6:-4] == ("--event-ports", ",".join(ports))
    assert router.argv[-4:] == ("--kv-event-block-size", "128", "--kv-event-model", "org/m")
    assert event_sources(URLS, ports)[1] == (
        f"--kv-event-source={URLS[1]}=tcp://127.0.0.1:{ports[1]}"
    )
    for plan in engines:
        sizes = [plan.argv[at + 1] for at, word in enumerate(plan.argv) if word == "--block-size"]
        assert set(sizes) == {"128"}


def test_a_label_that_keeps_a_router_from_its_work_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--router kv_aware is blind .*--labels none"):
        check_labels("oracle", {}, "kv_aware")
    with pytest.raises(UsageError, match="is blind to requests with vllm_xargs"):
        check_labels("none", {"vllm_xargs": {"a": 1}}, "kv_aware")
    check_labels("none", {}, "kv_aware")
    check_labels("oracle", {}, "cache_aware")


def test_without_a_router_there_is_one_engine() -> None:
    spec = load_catalog()["vllm"]
    assert fleet_of(spec, TargetSettings("org/m", replicas=3)) is spec


def test_options_of_a_fleet_mean_nothing_to_one_engine() -> None:
    run = parse_run("run", ["--target", "vllm", "--replicas", "2"])
    with pytest.raises(UsageError, match="--replicas means nothing to target vllm: choose vllm-fl"):
        choose_targets(run.targets, run.target_arguments)
    run = parse_run("run", ["--target", "vllm,vllm-fleet", "--router", "random"])
    assert len(choose_targets(run.targets, run.target_arguments)) == 2


@pytest.mark.parametrize("replicas", [0, -1, 65])
def test_a_number_that_cannot_be(replicas: int) -> None:
    with pytest.raises(UsageError, match=f"--replicas {replicas} is not between 1 and 64"):
        TargetSettings("org/m", replicas=replicas)


@pytest.mark.parametrize(
    ("policy", "words"),
    [("power_of_two", "pip install vllm-router"), ("haproxy-hash", "apt-get install haproxy")],
)
def test_a_router_that_is_not_there_is_a_line_with_the_cure(
    policy: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(fleet.sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fleet, "SBIN", str(tmp_path))
    settings = TargetSettings("org/m", router=policy)
    with pytest.raises(UsageError, match=f"needs {ROUTERS[policy]}") as refused:
        require_router(load_catalog()["vllm-fleet"], settings)
    assert words in str(refused.value)
    require_router(load_catalog()["vllm"], settings)


def test_an_unknown_policy_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"unknown --router 'fastest': choose one of cache_aware"):
        require_router(load_catalog()["vllm-fleet"], TargetSettings("m", router="fastest"))


def test_vllms_router_hides_no_rejection() -> None:
    words = command("random", "127.0.0.1", 8000, 8001, URLS)
    assert words[-3:] == ["--worker-urls", *URLS]
    assert "--disable-retries" in words


def test_no_web_page_reads_what_vllms_router_answers() -> None:
    words = command("random", "127.0.0.1", 8000, 8001, URLS)
    origin = words[words.index("--cors-allowed-origins") + 1]
    assert origin == "http://127.0.0.1:0", "empty would be every page"


@pytest.mark.parametrize(
    ("policy", "balance"),
    [("haproxy-hash", "balance hdr(X-Session-ID)"), ("haproxy-leastconn", "balance leastconn")],
)
def test_haproxy_balances_as_its_policy_says(policy: str, balance: str) -> None:
    config = haproxy_config(policy, "127.0.0.1", 8000, URLS)
    assert balance in config
    assert config.count(" check") == 2
    assert "bind 127.0.0.1:8000" in config
