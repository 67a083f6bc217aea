from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.targets.catalog import fill, find_target, load_catalog, ports_in
from loadgen.targets.plan import plan_services, port_names
from loadgen.targets.settings import TargetSettings


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "mine.toml"


def test_the_shipped_targets_are_there_in_order_with_a_description() -> None:
    catalog = load_catalog()
    assert list(catalog) == [
        *("hf-no-cache", "hf-cache", "hf-continuous"),
        *("vllm", "vllm-no-prefix-cache", "vllm-serial", "vllm-queue", "vllm-fp8"),
        *("vllm-fleet", "vllm-lmcache", "vllm-lmcache-files", "vllm-lmcache-fleet"),
        *("vllm-lmcache-codec", "vllm-lmcache-sharded", "vllm-lmcache-regional"),
        *("vllm-context", "vllm-context-fleet", "vllm-lmcache-context"),
        *("vllm-offload", "vllm-offload-context", "vllm-tiered", "vllm-tiered-context"),
        *("vllm-offload-sharded", "vllm-offload-regional"),
    ]
    assert all(target.description for target in catalog.values())
    assert [service.name for service in catalog["vllm-lmcache"].services] == ["lmcache", "vllm"]
    assert catalog["vllm-lmcache"].engine.name == "vllm"


def test_the_reset_route_of_an_engine_is_kept_beside_other_services() -> None:
    catalog = load_catalog()
    route = "/reset_prefix_cache?reset_external=true"
    for name in ("vllm-offload", "vllm-offload-sharded", "vllm-offload-regional", "vllm-tiered"):
        assert catalog[name].engine.reset == route, "else a tier is never empty"
    assert catalog["vllm-fleet"].engine.reset == catalog["vllm"].engine.reset


def test_an_own_target_extends_a_shipped_one(own: Path) -> None:
    own.write_text(
        '[targets.fp8]\nextends = "vllm-no-prefix-cache"\nargs = ["--kv-cache-dtype", "fp8"]\n'
        "env = { A = 1 }"
    )
    target = load_catalog(own)["fp8"]
    assert target.extra.args == ("--no-enable-prefix-caching", "--kv-cache-dtype", "fp8")
    assert target.extra.env == {"A": "1"}
    assert target.services == load_catalog()["vllm"].services
    assert target.description == load_catalog()["vllm-no-prefix-cache"].description


def test_a_target_may_give_its_cache_more_arguments(own: Path) -> None:
    own.write_text(
        '[targets.big]\nextends = "vllm-lmcache-files"\ncache_args = ["--max-workers", "2"]\n'
    )
    catalog = load_catalog(own)
    plain, cache = (catalog[name].of_role("cache") for name in ("vllm-lmcache", "big"))
    assert plain is not None
    assert cache is not None
    added = cache.argv[len(plain.argv) :]
    assert (added[0], added[2:]) == ("--l2-adapter", ("--max-workers", "2"))
    assert "{l2_dir}" in added[1]
    assert catalog["big"].engine == catalog["vllm-lmcache"].engine
    own.write_text('[targets.none]\nextends = "vllm"\ncache_args = ["--x"]\n')
    with pytest.raises(UsageError, match=r"cache_args: is for a target with a cache"):
        load_catalog(own)


def test_a_target_has_the_fields_of_the_one_it_extends_and_its_own(own: Path) -> None:
    own.write_text(
        '[targets.near]\nextends = "hf-cache"\n[targets.near.body]\nseed = 3\n'
        '[targets.far]\nextends = "near"\nkv_lives = "process"\n[targets.far.body]\nseed = 4\n'
    )
    catalog = load_catalog(own)
    config = {"generation_config": '{"min_new_tokens": {max_tokens}}'}
    assert [catalog[name].body for name in ("hf-cache", "near", "far")] == [
        *(config, {**config, "seed": 3}, {**config, "seed": 4})
    ]
    assert [catalog[name].kv_lives for name in ("vllm", "near", "far")] == [
        *(None, "request", "process")
    ]
    assert catalog["far"].engine.model == "{model}"
    assert catalog["vllm"].body == {}


def test_an_own_target_may_extend_the_shipped_one_of_its_name(own: Path) -> None:
    own.write_text('[targets.vllm]\nextends = "vllm"\nargs = ["--max-num-seqs", "1"]\n')
    catalog = load_catalog(own)
    assert catalog["vllm"].extra.args == ("--max-num-seqs", "1")
    assert catalog["vllm-no-prefix-cache"].extra.args[:2] == ("--max-num-seqs", "1")


def test_an_own_service_stands_in_for_the_shipped_one(own: Path) -> None:
    own.write_text('[services.vllm]\nargv = ["other", "{port}"]\nready = "/up"\n')
    assert load_catalog(own)["vllm"].engine.argv == ("other", "{port}")


BAD = {
    "no toml": ("[targets", "not valid TOML"),
    "nested too deeply": ("a=" + "[" * 100_000, "not valid TOML: it is nested too deeply"),
    "a number too long": (f"a = {'1' * 5000}", "not valid TOML"),
    "a stray table": ("[target.x]", "target: unknown key"),
    "a stray key": ('[targets.x]\nextends = "vllm"\narg = []', "[targets.x] arg: unknown key"),
    "a wrong type": (
        '[targets.x]\nextends = "vllm"\nargs = "--x"',
        "[targets.x] args: must be a list of strings",
    ),
    "a wrong value": ('[targets.x]\nextends = "vllm"\nenv = {A = true}', "[targets.x.env] A: must"),
    "a field of ours": (
        '[targets.x]\nextends = "vllm"\nbody = {stream = false}',
        "[targets.x.body] stream: is set by the client itself",
    ),
    "an unknown life": (
        '[targets.x]\nextends = "vllm"\nkv_lives = "ever"',
        "[targets.x] kv_lives: unknown kv_lives 'ever', choose one of request, process",
    ),
    "a date in a body": (
        '[targets.x]\nextends = "vllm"\nbody = {when = 2024-01-01}',
        "[targets.x.body] when: cannot be sent (Object of type date is not JSON",
    ),
    "no number in a body": (
        '[targets.x]\nextends = "vllm"\nbody = {top_p = nan}',
        "[targets.x.body] top_p: cannot be sent (Out of range float",
    ),
    "too large a number in a body": (
        '[targets.x]\nextends = "vllm"\nbody = {seed = 18446744073709551616}',
        "[targets.x.body] seed: cannot be sent (Integer exceeds 64-bit",
    ),
    "no services": ('[targets.x]\nargs = ["--x"]', "[targets.x] services: is missing"),
    "an unknown base": (
        '[targets.x]\nextends = "vlm"',
        "[targets.x] extends: unknown target 'vlm'",
    ),
    "an unknown service": ('[targets.x]\nservices = ["y"]', "[targets.x] services: unknown"),
    "a service twice": (
        '[targets.x]\nservices = ["valkey", "valkey", "vllm"]',
        "[targets.x] services: 'valkey' is there twice",
    ),
    "a route without a slash": (
        '[services.x]\nargv = ["a"]\nready = "health"',
        "[services.x] ready: must be a path such as /health, not 'health'",
    ),
    "a route with a space": (
        '[services.x]\nargv = ["a"]\nready = "/"\nmetrics = "/my metrics"',
        "[services.x] metrics: must be a path",
    ),
    "a target's route without a slash": (
        '[targets.x]\nextends = "vllm"\nreset = "reset"',
        "[targets.x] reset: must be a path",
    ),
    "a circle": (
        '[targets.x]\nextends = "y"\n[targets.y]\nextends = "x"',
        "[targets.x] extends: leads back",
    ),
    "a service without a command": ('[services.x]\nready = "/"', "[services.x] argv: is missing"),
    "a service never ready": ('[services.x]\nargv = ["a"]', "[services.x] ready: is missing"),
    "a stray condition": (
        '[services.x]\nargv = ["a"]\nready = "/"\n[services.x.when.tpu]',
        "[services.x.when] tpu: unknown key, choose one of cpu, gpu",
    ),
    "a stray placeholder": (
        '[services.x]\nargv = ["{modle}"]\nready = "/"',
        "[services.x] argv: unknown placeholder {modle}",
    ),
    "a stray placeholder of a model": (
        '[services.x]\nargv = ["a"]\nready = "/"\nmodel = "{modle}"',
        "[services.x] model: unknown placeholder {modle}",
    ),
    "an argument that no program takes": (
        '[services.x]\nargv = ["a\\u0000b"]\nready = "/"',
        "[services.x] argv: must be a list of strings",
    ),
    "a variable without a name": (
        '[targets.x]\nextends = "vllm"\nenv = {"A=B" = "c"}',
        "[targets.x.env] A=B: is no name of a variable",
    ),
    "no block size": (
        '[services.x]\nargv = ["a"]\nready = "/"\nblock_size = {cpu = 0}',
        "[services.x.block_size] cpu: must be a number of tokens",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_named_with_file_table_and_key(own: Path, name: str) -> None:
    text, message = BAD[name]
    own.write_text(text)
    with pytest.raises(UsageError) as error:
        load_catalog(own)
    assert str(error.value).startswith(str(own))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml.*No such file"):
        load_catalog(tmp_path / "nowhere.toml")


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown target 'vlm'.*vllm, vllm-no-prefix-cache"):
        find_target(load_catalog(), "vlm")


def test_placeholders_are_filled_and_the_braces_of_json_stay() -> None:
    text = '{"a":{"port":{other.mq_port}},"b":{}} {port}'
    values = {"other.mq_port": "1", "me.port": "2"}
    assert fill(text, "me", values) == '{"a":{"port":1},"b":{}} 2'
    assert ports_in([text], "me") == {"other.mq_port", "me.port"}


def test_a_service_may_have_a_dot_in_its_name(own: Path) -> None:
    service = '[services."engine-0.6"]\nargv = ["engine", "{port}"]\nready = "/"\n'
    own.write_text(service + '[targets.own]\nservices = ["engine-0.6"]')
    spec, settings = load_catalog(own)["own"], TargetSettings("m")
    assert port_names(spec, settings, "cpu") == ["engine-0.6.port"]
    (plan,) = plan_services(spec, settings, "cpu", {"engine-0.6.port": 1})
    assert plan.argv == ("engine", "1")
