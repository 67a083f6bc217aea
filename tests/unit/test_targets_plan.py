import json
import socket
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kv_tiers.codecs import CODECS
from kv_tiers.store.adaptive import ADAPTIVE
from loadgen.cli.ask import ask_command
from loadgen.errors import UsageError
from loadgen.targets import context_scheduler
from loadgen.targets.catalog import TargetSpec, load_catalog
from loadgen.targets.context_scheduler import ContextSchedulerSettings
from loadgen.targets.hardware import free_ports, never_given, require_free
from loadgen.targets.own_routes import KEY_VARIABLE
from loadgen.targets.plan import ServicePlan, plan_services, port_names, uses
from loadgen.targets.settings import KV_CODECS, TargetSettings
from scheduler_plugin.settings import KEYS, POLICIES, OrderSettings


@pytest.fixture
def model(tmp_path: Path) -> str:
    directory = tmp_path / "tiny"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"max_position_embeddings": 12288}))
    return str(directory)


def plan(name: str, settings: TargetSettings, platform: str = "cpu") -> list[ServicePlan]:
    spec = load_catalog()[name]
    ports = {name: 9000 + i for i, name in enumerate(port_names(spec, settings, platform))}  # type: ignore[arg-type]
    return plan_services(spec, settings, platform, ports)  # type: ignore[arg-type]


def option(plan: ServicePlan, name: str) -> str:
    """An option's value as a program sees it that takes the last one given."""
    last = len(plan.argv) - 1 - plan.argv[::-1].index(name)
    return plan.argv[last + 1]


def test_the_capacity_becomes_blocks_and_a_request_length(model: str) -> None:
    (vllm,) = plan("vllm", TargetSettings(model, kv_tokens=2560))
    assert option(vllm, "--num-gpu-blocks-override") == "21"
    assert option(vllm, "--max-model-len") == "2560"
    assert option(vllm, "--block-size") == "128"


def test_on_a_gpu_the_same_capacity_is_other_blocks_and_nothing_of_the_cpu(model: str) -> None:
    (vllm,) = plan("vllm", TargetSettings(model, kv_tokens=2560), "gpu")
    assert option(vllm, "--num-gpu-blocks-override") == "161"
    assert "--enforce-eager" not in vllm.argv
    assert "OMP_NUM_THREADS" not in vllm.env


@pytest.mark.parametrize(
    ("fast", "platform", "args", "dtypes"),
    [
        (True, "cpu", (), []),
        (False, "gpu", (), []),
        (False, "cpu", (), ["float32"]),
        (False, "cpu", ("--dtype", "bfloat16"), ["float32", "bfloat16"]),
    ],
)
def test_a_cpu_without_kernels_for_bfloat16_computes_in_float32_unless_told_otherwise(
    fast: bool,
    platform: str,
    args: tuple[str, ...],
    dtypes: list[str],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.targets.plan.has_bfloat16_kernels", lambda: fast)
    (vllm,) = plan("vllm", TargetSettings(model, args=args), platform)
    assert [value for name, value in pairwise(vllm.argv) if name == "--dtype"] == dtypes


@pytest.mark.parametrize(("name", "dtypes"), [("trained", ["float32"]), ("another", [])])
def test_the_trained_model_is_asked_in_float32_on_every_cpu(
    name: str, dtypes: list[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[TargetSettings] = []

    def checked(_: TargetSpec, settings: TargetSettings) -> None:
        asked.append(settings)
        raise UsageError("nothing is started")

    monkeypatch.setattr("loadgen.launch.ask_session.check_target", checked)
    monkeypatch.setattr("loadgen.launch.target_run.model_named", lambda _: model)
    monkeypatch.setattr("loadgen.targets.plan.has_bfloat16_kernels", lambda: True)
    with pytest.raises(UsageError, match="nothing is started"):
        ask_command(["who?", "--model", name])
    (vllm,) = plan("vllm", asked[0])
    assert [value for option, value in pairwise(vllm.argv) if option == "--dtype"] == dtypes


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('{"quantization_config": {"quant_method": "awq"}}', False),
        ("{}", True),
        ("[]", True),
        ("not JSON", True),
    ],
)
def test_quantized_weights_decide_for_themselves(
    config: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.targets.plan.has_bfloat16_kernels", lambda: False)
    (tmp_path / "config.json").write_text(config)
    (vllm,) = plan("vllm", TargetSettings(str(tmp_path)))
    assert ("--dtype" in vllm.argv) is told


def test_without_a_capacity_the_engine_decides(model: str) -> None:
    (vllm,) = plan("vllm", TargetSettings(model), "gpu")
    assert "--num-gpu-blocks-override" not in vllm.argv
    assert option(vllm, "--max-model-len") == "auto"


def test_a_cache_larger_than_the_window_leaves_the_window(model: str) -> None:
    (vllm,) = plan("vllm", TargetSettings(model, kv_tokens=50_000))
    assert option(vllm, "--max-model-len") == "12288"


def test_a_local_model_is_offline_and_named_after_its_directory(model: str) -> None:
    (vllm,) = plan("vllm", TargetSettings(model))
    assert vllm.env["HF_HUB_OFFLINE"] == "1"
    assert option(vllm, "--served-model-name") == "tiny"
    assert option(vllm, "--model") == model


def test_a_named_model_may_be_fetched_and_its_window_is_left_to_the_engine() -> None:
    (vllm,) = plan("vllm", TargetSettings("Qwen/Qwen2.5-1.5B-Instruct", kv_tokens=4096))
    assert "HF_HUB_OFFLINE" not in vllm.env
    assert option(vllm, "--served-model-name") == "Qwen/Qwen2.5-1.5B-Instruct"
    assert option(vllm, "--max-model-len") == "auto"


def test_lmcache_comes_first_and_vllm_is_told_its_port(model: str) -> None:
    lmcache, vllm = plan("vllm-lmcache", TargetSettings(model, l1_gb=0.032))
    connector = json.loads(option(vllm, "--kv-transfer-config"))
    port = connector["kv_connector_extra_config"]["lmcache.mp.port"]
    assert str(port) == option(lmcache, "--port")
    assert option(lmcache, "--l1-size-gb") == "0.032"
    assert lmcache.url == f"http://127.0.0.1:{option(lmcache, '--http-port')}"
    assert lmcache.reset_url == f"{lmcache.url}/cache/clear"


@pytest.mark.parametrize(
    ("name", "nodes"), [("vllm-lmcache-codec", 1), ("vllm-lmcache-sharded", 3)]
)
def test_nodes_come_before_lmcache_which_is_told_their_ports(
    name: str, nodes: int, model: str
) -> None:
    valkey, lmcache, vllm = plan(name, TargetSettings(model, kv_codec="int8"))
    assert (valkey.role, lmcache.role, vllm.role) == ("service", "cache", "engine")
    adapter = json.loads(option(lmcache, "--l2-adapter"))["adapter_params"]
    at = valkey.argv.index("--nodes")
    ports = valkey.argv[at + 1 : at + 1 + nodes]
    assert len(set(ports)) == nodes
    assert adapter.pop("nodes") == [f"127.0.0.1:{port}" for port in ports]
    assert adapter == {"codec": "int8", "profile": "", **({"copies": 2} if nodes == 3 else {})}
    assert valkey.reset_url == f"http://127.0.0.1:{option(valkey, '--port')}/flush"
    assert option(valkey, "--node-gb") == "1"
    with pytest.raises(UsageError, match="unknown --kv-codec 'int5': choose one of raw, lossless"):
        TargetSettings(model, kv_codec="int5")
    with pytest.raises(UsageError, match="cachegen:FILE with what `kvswarm kv codecs` wrote"):
        TargetSettings(model, kv_codec="cachegen")


@pytest.mark.parametrize("name", ["vllm-lmcache-codec", "vllm-lmcache-regional"])
def test_lmcache_is_told_the_file_of_a_profile(name: str, model: str, tmp_path: Path) -> None:
    file = tmp_path / 'a "quoted" name.json'
    _, lmcache, _ = plan(name, TargetSettings(model, kv_codec=f"cachegen:{file}"))
    adapter = json.loads(option(lmcache, "--l2-adapter"))["adapter_params"]
    assert (adapter["codec"], adapter["profile"]) == ("cachegen", str(file))


@pytest.mark.parametrize("name", ["vllm-lmcache-codec", "vllm-offload-sharded"])
def test_nodes_are_told_how_much_each_may_hold(name: str, model: str) -> None:
    valkey = plan(name, TargetSettings(model, l2_gb=0.25))[0]
    assert option(valkey, "--node-gb") == "0.25"


def test_a_region_is_near_and_its_centre_behind_a_link(model: str) -> None:
    valkey, lmcache, _ = plan("vllm-lmcache-regional", TargetSettings(model))
    at = valkey.argv.index("--nodes")
    near, central = valkey.argv[at + 1 : at + 3]
    assert len({near, central, option(valkey, "--link"), option(valkey, "--port")}) == 4
    assert float(option(valkey, "--rate-mbit")) > 0
    adapter = json.loads(option(lmcache, "--l2-adapter"))["adapter_params"]
    assert adapter["nodes"] == [f"127.0.0.1:{near}"]
    assert adapter["central"] == [f"127.0.0.1:{option(valkey, '--link')}"]


def test_codecs_of_the_command_line_are_those_that_need_no_profile() -> None:
    assert {*CODECS, ADAPTIVE} == set(KV_CODECS)


def offload(plan: ServicePlan) -> dict[str, Any]:
    connector = json.loads(option(plan, "--kv-transfer-config"))
    assert connector["kv_connector"] == "OffloadingConnector"
    return dict(connector["kv_connector_extra_config"])


@pytest.mark.parametrize("name", ["vllm-offload", "vllm-offload-context"])
def test_offload_to_memory_is_vllms_own_but_for_the_worker_on_the_cpu(
    name: str, model: str
) -> None:
    settings = TargetSettings(model, l1_gb=0.5)
    (on_cpu,), (on_gpu,) = (plan(name, settings, platform) for platform in ("cpu", "gpu"))
    assert offload(on_gpu) == {"spec_name": "CPUOffloadingSpec", "cpu_bytes_to_use": 2**29}
    assert offload(on_cpu) == {
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": "kv_tiers.spec",
        "cpu_bytes_to_use": 2**29,
    }
    assert on_cpu.reset_url == f"{on_cpu.url}/reset_prefix_cache?reset_external=true"
    assert on_cpu.l2_dir is None
    assert ("--scheduler-cls" in on_cpu.argv) is name.endswith("-context")


@pytest.mark.parametrize("name", ["vllm-tiered", "vllm-tiered-context"])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_tier_on_disk_has_a_folder_of_this_start_alone(
    name: str, platform: str, model: str, tmp_path: Path
) -> None:
    place = tmp_path / 'a "quoted" \\ é'
    place.mkdir()
    settings = TargetSettings(model, l2_dir=place)
    (first,), (second,) = (plan(name, settings, platform) for _ in range(2))
    (tier,) = offload(first)["secondary_tiers"]
    files = {"type": "CheckedFiles", "module_path": "kv_tiers.vllm_files"}
    assert tier == {**files, "root_dir": str(first.l2_dir)}
    assert first.l2_dir is not None
    assert (first.l2_dir.parent, first.l2_dir.exists()) == (place, False)
    assert first.l2_dir != second.l2_dir
    assert first.l2_dir in first.folders
    names = {"cpu": "HostTieringSpec", "gpu": "TieringOffloadingSpec"}
    assert offload(first)["spec_name"] == names[platform]
    assert ("spec_module_path" in offload(first)) is (platform == "cpu")


def test_a_folder_that_cannot_be_written_is_refused(model: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(UsageError, match=r"--l2-dir .* is not a folder that can be written"):
            TargetSettings(model, l2_dir=folder)


def test_what_the_user_adds_comes_last_and_only_to_the_engine(model: str) -> None:
    settings = TargetSettings(model, args=("--enable-prefix-caching",))
    (vllm,) = plan("vllm-no-prefix-cache", settings)
    assert vllm.argv[-2:] == ("--no-enable-prefix-caching", "--enable-prefix-caching")
    lmcache, _ = plan("vllm-lmcache", settings)
    assert "--enable-prefix-caching" not in lmcache.argv


def test_transformers_has_a_guard_and_its_key(model: str) -> None:
    (served,) = plan("hf-continuous", TargetSettings(model))
    assert "loadgen.targets.guarded_transformers" in served.argv
    assert len(served.env[KEY_VARIABLE]) >= 32


def test_development_routes_are_open_on_loopback_only(model: str) -> None:
    (near,) = plan("vllm", TargetSettings(model))
    (far,) = plan("vllm", TargetSettings(model, host="0.0.0.0"))
    assert near.env["VLLM_SERVER_DEV_MODE"] == "1"
    assert option(near, "--middleware") == "loadgen.targets.own_routes.OwnRoutes"
    assert len(near.env[KEY_VARIABLE]) >= 32
    (other,) = plan("vllm", TargetSettings(model))
    assert other.env[KEY_VARIABLE] != near.env[KEY_VARIABLE]
    assert not {"VLLM_SERVER_DEV_MODE", KEY_VARIABLE} & far.env.keys()
    assert option(far, "--host") == "0.0.0.0"
    assert far.url.startswith("http://127.0.0.1:")


def test_every_service_runs_in_this_python(model: str) -> None:
    assert {p.argv[0] for p in plan("vllm-lmcache", TargetSettings(model))} == {sys.executable}


@pytest.mark.parametrize("name", ["vllm-context", "vllm-lmcache-context"])
def test_the_context_scheduler_gets_what_was_given_as_json(model: str, name: str) -> None:
    given = ContextSchedulerSettings(policy="prefix-group", max_wait_s=2.5, min_kv_usage=0)
    engine = plan(name, TargetSettings(model, context_scheduler=given))[-1]
    assert option(engine, "--scheduler-cls") == "scheduler_plugin.ContextScheduler"
    assert json.loads(option(engine, "--additional-config")) == {
        "context_scheduler": {
            "policy": "prefix-group",
            "max_wait_s": 2.5,
            "min_kv_usage": 0,
            "strict": True,
        }
    }
    (plain,) = plan("vllm", TargetSettings(model, context_scheduler=given))
    assert "--additional-config" not in plain.argv


def test_the_plugin_keeps_its_own_defaults(model: str) -> None:
    (engine,) = plan("vllm-context", TargetSettings(model))
    config = json.loads(option(engine, "--additional-config"))
    assert config == {"context_scheduler": {"strict": True}}


def test_the_plugin_knows_every_setting(model: str) -> None:
    given = ContextSchedulerSettings("lpm", "label", 1, 2, 3.0, 4, 0.5)
    names = {field.name for field in fields(OrderSettings)}
    assert json.loads(given.json).keys() == names
    assert (context_scheduler.POLICIES, context_scheduler.KEYS) == (POLICIES, KEYS)


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        ("quantum", 1, 0),
        ("max_overtakes", 0, -1),
        ("max_wait_s", 0.001, 0.0),
        ("max_wait_s", 1.0, float("inf")),
        ("window", 1, 0),
        ("min_kv_usage", 0.0, -0.1),
        ("min_kv_usage", 1.0, 1.1),
        ("min_kv_usage", 1.0, float("nan")),
        ("policy", "lpm", "best"),
        ("key", "label", "name"),
    ],
)
def test_what_the_plugin_would_refuse_is_refused_before_its_engine_starts(
    name: str, taken: object, refused: object
) -> None:
    for settings in (ContextSchedulerSettings, OrderSettings):
        assert getattr(settings(**{name: taken}), name) == taken  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--" + name.replace("_", "-")):
        ContextSchedulerSettings(**{name: refused})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        OrderSettings(**{name: refused})  # type: ignore[arg-type]


def test_own_targets_may_use_the_context_scheduler_in_a_config_of_theirs(tmp_path: Path) -> None:
    config = """'{"mine":"{x}","context_scheduler":{context_scheduler}}'"""
    text = f'[targets.own]\nextends = "vllm"\nargs = ["--additional-config", {config}]'
    spec = own(tmp_path, text.replace("{x}", "a \\\\ b"))
    settings = TargetSettings("m", context_scheduler=ContextSchedulerSettings(quantum=8))
    (engine,) = plan_services(spec, settings, "cpu", {"vllm.port": 1})
    assert json.loads(option(engine, "--additional-config")) == {
        "mine": "a \\ b",
        "context_scheduler": {"quantum": 8, "strict": True},
    }


def test_an_engines_metrics_go_to_a_directory_of_this_start_alone(model: str) -> None:
    first, second = (plan("vllm-context", TargetSettings(model))[0] for _ in range(2))
    assert first.env["PROMETHEUS_MULTIPROC_DIR"] == str(first.scratch_dir)
    assert first.scratch_dir != second.scratch_dir
    assert first.scratch_dir is not None
    assert not first.scratch_dir.exists(), "planning makes nothing"


def test_only_a_service_that_asks_has_a_scratch_directory(model: str) -> None:
    lmcache, _ = plan("vllm-lmcache-context", TargetSettings(model))
    (vllm,) = plan("vllm", TargetSettings(model))
    assert (lmcache.scratch_dir, vllm.scratch_dir) == (None, None)


@pytest.mark.parametrize(
    ("name", "placeholder", "expected"),
    [
        ("vllm", "l1_gb", False),
        ("vllm-lmcache", "l1_gb", True),
        ("vllm", "blocks", True),
        ("vllm-lmcache", "context_scheduler", False),
        ("vllm-lmcache-context", "context_scheduler", True),
        ("vllm-context", "scratch_dir", True),
        ("vllm-offload", "l1_bytes", True),
        ("vllm-tiered", "l2_dir", True),
        ("vllm-lmcache-files", "l2_dir", True),
        ("vllm-lmcache", "l2_dir", False),
        ("vllm-lmcache-codec", "kv_codec", True),
        ("vllm-lmcache-files", "kv_codec", False),
        *((f"vllm-lmcache-{nodes}", "l2_gb", True) for nodes in ("codec", "sharded", "regional")),
        *((f"vllm-offload-{nodes}", "l2_gb", True) for nodes in ("sharded", "regional")),
        *((name, "l2_gb", False) for name in ("vllm-offload", "vllm-tiered", "vllm-lmcache-files")),
    ],
)
def test_what_a_target_makes_use_of(name: str, placeholder: str, expected: bool) -> None:
    assert uses(load_catalog()[name], placeholder) is expected


def own(tmp_path: Path, text: str) -> TargetSpec:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return load_catalog(file)["own"]


def test_a_placeholder_of_the_capacity_needs_the_capacity(tmp_path: Path) -> None:
    spec = own(tmp_path, '[targets.own]\nextends = "vllm"\nargs = ["--x", "{blocks}"]')
    with pytest.raises(
        UsageError, match=r"target own: \{blocks\} has a value only with --kv-tokens"
    ):
        plan_services(spec, TargetSettings("m"), "cpu", {"vllm.port": 1})


def test_a_port_of_a_service_that_is_not_started_is_refused(tmp_path: Path) -> None:
    spec = own(tmp_path, '[targets.own]\nextends = "vllm"\nargs = ["{lmcache.mq_port}"]')
    with pytest.raises(UsageError, match=r"own: {lmcache.mq_port} names a service"):
        port_names(spec, TargetSettings("m"), "cpu")


def test_an_engine_without_a_block_size_takes_no_capacity(tmp_path: Path) -> None:
    text = '[services.e]\nargv = ["e"]\nready = "/"\n[targets.own]\nservices = ["e"]'
    with pytest.raises(UsageError, match="target own takes no --kv-tokens"):
        plan_services(own(tmp_path, text), TargetSettings("m", kv_tokens=999), "cpu", {"e.port": 1})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "m", "l1_gb": 0}, "--l1-gb 0"),
        ({"model": "m", "l1_gb": float("nan")}, "--l1-gb nan"),
        ({"model": "m", "l2_gb": 0.001}, "--l2-gb 0.001: give 0.01 or more"),
        ({"model": "m", "l2_gb": float("nan")}, "--l2-gb nan"),
        ({"model": "m", "l2_gb": float("inf")}, "--l2-gb inf"),
        ({"model": "m", "port": 70000}, "--port 70000"),
        ({"model": "~nosuchuser/m"}, r"no model at ~nosuchuser/m"),
        ({"model": "./nowhere"}, r"no model at \./nowhere.*kvswarm model build"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TargetSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "ports"),
    [
        ("32768 60999", range(10_000, 32_768)),
        ("1024 40000", range(40_001, 65_536)),
        ("1024 65535", range(10_000, 65_536)),
        ("", range(10_000, 32_768)),
    ],
)
def test_ports_of_services_are_none_that_connections_get(
    told: str, ports: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(told)
    monkeypatch.setattr("loadgen.targets.hardware.PORT_RANGE", tmp_path / "range")
    assert never_given() == ports


def test_free_ports_differ_and_a_taken_one_is_named() -> None:
    assert len(set(free_ports(20))) == 20
    assert set(free_ports(20)) <= set(never_given())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"127.0.0.1:{port}: Address already in use"):
            require_free("127.0.0.1", port)


@pytest.mark.parametrize("host", ["", " ", ".", "x" * 300, "203.0.113.7"])
def test_an_address_that_is_not_of_this_machine_is_refused_before_the_start(host: str) -> None:
    with pytest.raises(UsageError, match="choose another --bind or --port") as error:
        require_free(host, 0)
    assert len(str(error.value)) < 250
