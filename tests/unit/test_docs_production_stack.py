"""The values of docs/kubernetes for vLLM's production stack, by what its Helm chart makes of them.

A chart drops a key that it does not know without a word, and its schema lets it pass. So the tests
look at command lines, environment and volumes. Without a chart, keys are held against a list.

    pip install ".[chart]"
    helm pull vllm/vllm-stack --version 0.1.12
    PRODUCTION_STACK_CHART=vllm-stack-0.1.12.tgz pytest tests/unit/test_docs_production_stack.py
"""

import copy
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from test_docs_kubernetes import FOLDER, RESULTS, SWARM

CHART = os.environ.get("PRODUCTION_STACK_CHART", "")
needs_chart = pytest.mark.skipif(
    not CHART, reason="PRODUCTION_STACK_CHART is not set: this file says how"
)
GUIDE = FOLDER.parent / "guides" / "production-stack.md"
KUBERNETES = "1.32"
OFFLOAD, REPLICAS, MULTIPROCESS = "offload", "prefix-aware", "multiprocess"
ENGINES = (OFFLOAD, REPLICAS, MULTIPROCESS)
MONITORING = "monitoring"
TIER = {
    "--max-model-len": "16384",
    "--kv-transfer-config": {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
    "LMCACHE_LOCAL_CPU": "True",
    "LMCACHE_MAX_LOCAL_CPU_SIZE": "20",
}
"""What makes an engine with LMCache behind it."""

MODEL = "servingEngineSpec.modelSpec"
KNOWN = {
    "": {"servingEngineSpec", "routerSpec", "grafanaDashboards", "kube-prometheus-stack"},
    "servingEngineSpec": {
        *("runtimeClassName", "strategy", "startupProbe", "modelSpec", "serviceMonitor"),
    },
    MODEL: {
        *("name", "repository", "tag", "modelURL", "replicaCount", "hf_token"),
        *("requestCPU", "requestMemory", "requestGPU", "pvcStorage", "pvcAccessMode"),
        *("vllmConfig", "lmcacheConfig", "extraVolumes", "extraVolumeMounts"),
    },
    f"{MODEL}.hf_token": {"secretName", "secretKey"},
    f"{MODEL}.vllmConfig": {
        *("maxModelLen", "dtype", "enableChunkedPrefill", "enablePrefixCaching", "extraArgs"),
    },
    f"{MODEL}.lmcacheConfig": {"enabled", "cpuOffloadingBufferSize"},
    "routerSpec": {"routingLogic", "prefixMinMatchLength", "resources", "serviceMonitor"},
    "servingEngineSpec.serviceMonitor": {"enabled"},
    "routerSpec.serviceMonitor": {"enabled"},
    "grafanaDashboards": {"enabled"},
    "kube-prometheus-stack": {"enabled"},
}
"""The chart's keys, by where they stand; what is not listed here is Kubernetes' own."""


def values(*names: str) -> dict[str, Any]:
    """Of these files, as `helm -f` puts one over another: lists are replaced as a whole."""
    whole: dict[str, Any] = {}
    for name in names:
        whole = laid_over(whole, yaml.safe_load((FOLDER / f"stack-{name}.yaml").read_text()))
    return whole


def laid_over(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: laid_over(below.get(key), value) for key, value in above.items()}}


def model(chosen: dict[str, Any]) -> dict[str, Any]:
    (found,) = chosen["servingEngineSpec"]["modelSpec"]
    return dict(found)


def unknown_keys(found: Any, at: str = "") -> Iterator[str]:
    """Keys that the chart would drop, with their places."""
    for each in found if isinstance(found, list) else [found]:
        if at in KNOWN:
            yield from (f"{at}.{key}".lstrip(".") for key in each if key not in KNOWN[at])
        if isinstance(each, dict):
            for key, below in each.items():
                yield from unknown_keys(below, f"{at}.{key}".lstrip("."))


def helm() -> Any:
    """Late, as Helm brings a runtime of its own."""
    import helm_python

    return helm_python


def rendered(chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects that the chart makes of values, those of charts below it left out."""
    with helm().Chart.load(CHART) as chart:
        files = chart.render(chosen, name="vllm", namespace="default")
    texts = (text for name, text in files.items() if name.startswith("vllm-stack/templates/"))
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def named(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def pod_of(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return dict(named(objects, "Deployment", name)["spec"]["template"]["spec"])


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["containers"]
    return dict(found)


def engine(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return container(pod_of(objects, "vllm-mistral-deployment-vllm"))


def environment(of: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in of["env"]}


def after(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words else None


def tier(of: dict[str, Any]) -> dict[str, Any]:
    """What there is of `TIER` in an engine's container."""
    connector = after(of["command"], "--kv-transfer-config")
    return {
        **{name: environment(of).get(name) for name in TIER if name.startswith("LMCACHE")},
        "--max-model-len": after(of["command"], "--max-model-len"),
        "--kv-transfer-config": json.loads(connector) if connector else None,
    }


def sidecar() -> dict[str, Any]:
    (found,) = patch()["initContainers"]
    return dict(found)


def patch() -> dict[str, Any]:
    """Of a pod's spec."""
    whole = yaml.safe_load((FOLDER / "lmcache-sidecar.yaml").read_text())
    return dict(whole["spec"]["template"]["spec"])


def validate(each: dict[str, Any]) -> None:
    kubernetes_validate.validate(each, KUBERNETES, strict=True)


@pytest.mark.parametrize("each", [*SWARM, RESULTS], ids=lambda each: each["kind"])
def test_our_own_objects_are_kubernetes(each: dict[str, Any]) -> None:
    validate(each)


def test_a_misspelt_key_of_an_object_is_found() -> None:
    wrong = copy.deepcopy(RESULTS)
    wrong["spec"]["restartpolicy"] = wrong["spec"].pop("restartPolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="restartpolicy"):
        validate(wrong)


@pytest.mark.parametrize("name", [*ENGINES, MONITORING])
def test_values_have_no_key_that_the_chart_would_drop(name: str) -> None:
    assert list(unknown_keys(values(name))) == []


@pytest.mark.parametrize("name", ENGINES)
def test_replicas_share_a_volume_that_may_be_shared(name: str) -> None:
    modes = {1: ["ReadWriteOnce"], 2: ["ReadWriteMany"]}
    assert model(values(name))["pvcAccessMode"] == modes[model(values(name))["replicaCount"]]


def test_one_system_prompt_does_not_decide_the_replica() -> None:
    assert values(REPLICAS)["routerSpec"]["prefixMinMatchLength"] > 0


def test_what_the_guide_sets_is_set_in_the_values() -> None:
    named_keys = re.findall(r"((?:\w+(?:\[0\])?\.)+\w+)=", GUIDE.read_text())
    assert named_keys
    for key in named_keys:
        below: Any = model(values(OFFLOAD))
        for word in key.removeprefix(f"{MODEL}[0].").split("."):
            below = below[word]


def test_the_sidecar_is_a_container_of_a_pod() -> None:
    deployment = copy.deepcopy(next(each for each in SWARM if each["kind"] == "Deployment"))
    deployment["spec"]["template"]["spec"].update(patch())
    validate(deployment)


def test_engine_and_sidecar_fit_together() -> None:
    chosen = model(values(MULTIPROCESS))
    config = json.loads(after(chosen["vllmConfig"]["extraArgs"], "--kv-transfer-config") or "")
    port = config["kv_connector_extra_config"]["lmcache.mp.port"]
    offload = model(values(OFFLOAD))
    size = offload["lmcacheConfig"]["cpuOffloadingBufferSize"]
    assert {f"--port={port}", f"--l1-size-gb={size}"} < set(sidecar()["args"])
    assert sidecar()["image"] == f"{chosen['repository']}:{chosen['tag']}"
    (mount,) = chosen["extraVolumeMounts"]
    assert sidecar()["volumeMounts"] == [mount]
    assert [each["name"] for each in chosen["extraVolumes"]] == [mount["name"]]
    asked = sidecar()["resources"]["requests"]
    assert chosen["requestCPU"] + int(asked["cpu"]) == offload["requestCPU"]
    memory = [int(each.removesuffix("Gi")) for each in (chosen["requestMemory"], asked["memory"])]
    assert f"{sum(memory)}Gi" == offload["requestMemory"]


@needs_chart
def test_the_list_of_keys_is_the_charts() -> None:
    with helm().Chart.load(CHART) as chart:
        source = "\n".join(each["data"] for each in chart.templates)
        assert KNOWN[""] <= chart.values.keys()
    keys = {key for at, listed in KNOWN.items() if at for key in listed}
    assert {key for key in keys if not re.search(rf"[.\"]{key}\b", source)} == set()


@needs_chart
@pytest.mark.parametrize("names", [*((n,) for n in ENGINES), (REPLICAS, MONITORING)], ids="+".join)
def test_the_chart_makes_objects_of_kubernetes(names: tuple[str, ...]) -> None:
    assert helm().lint(CHART, values(*names))["errors"] == []
    objects = [each for each in rendered(values(*names)) if "coreos" not in each["apiVersion"]]
    assert {"Deployment", "Service", "PersistentVolumeClaim"} < {each["kind"] for each in objects}
    for each in objects:
        validate(each)


@needs_chart
def test_the_engine_offloads_to_memory() -> None:
    of = engine(rendered(values(OFFLOAD)))
    assert tier(of) == TIER
    words = of["command"]
    assert words[1:3] == ["serve", "mistralai/Mistral-7B-Instruct-v0.2"]
    assert {"--no-enable-chunked-prefill", "--enable-prefix-caching"} < set(words)
    assert {"--max-num-batched-tokens=16384", "--enable-prompt-tokens-details"} < set(words)
    assert of["resources"]["requests"] == {"cpu": "12", "memory": "48Gi", "nvidia.com/gpu": "1"}
    assert of["resources"]["limits"] == {"nvidia.com/gpu": "1"}


@needs_chart
@pytest.mark.parametrize("size", ["5", 10, 40])
def test_the_memory_has_the_size_that_is_set(size: str | int) -> None:
    chosen = values(OFFLOAD)
    model(chosen)["lmcacheConfig"]["cpuOffloadingBufferSize"] = size
    assert tier(engine(rendered(chosen))) == {**TIER, "LMCACHE_MAX_LOCAL_CPU_SIZE": str(size)}


@needs_chart
def test_offload_that_is_off_leaves_the_rest_as_it_is() -> None:
    on = engine(rendered(values(OFFLOAD)))
    chosen = values(OFFLOAD)
    model(chosen)["lmcacheConfig"]["enabled"] = False
    off = engine(rendered(chosen))
    assert tier(off)["--kv-transfer-config"] is None
    at = on["command"].index("--kv-transfer-config")
    assert off["command"] == on["command"][:at] + on["command"][at + 2 :]


@needs_chart
@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("lmcacheConfig", "lmCacheConfig"),
        ("lmcacheConfig.enabled", "enable"),
        ("lmcacheConfig.cpuOffloadingBufferSize", "cpuOffloadingBuffersize"),
        ("vllmConfig.maxModelLen", "maxModelLength"),
    ],
)
def test_a_misspelt_key_passes_the_chart_and_fails_here(path: str, wrong: str) -> None:
    chosen = values(OFFLOAD)
    *before, last = path.split(".")
    (found,) = chosen["servingEngineSpec"]["modelSpec"]
    for word in before:
        found = found[word]
    found[wrong] = found.pop(last)
    assert helm().lint(CHART, chosen)["errors"] == []
    assert tier(engine(rendered(chosen))) != TIER
    assert list(unknown_keys(chosen)) == [".".join((MODEL, *before, wrong))]


@needs_chart
def test_the_router_goes_by_prefixes() -> None:
    objects = rendered(values(REPLICAS))
    words = container(pod_of(objects, "vllm-deployment-router"))["args"]
    assert after(words, "--routing-logic") == "prefixaware"
    assert after(words, "--prefix-min-match-length") == "4096"
    selector = after(words, "--k8s-label-selector") or ""
    labels = dict(each.split("=") for each in selector.split(","))
    deployment = named(objects, "Deployment", "vllm-mistral-deployment-vllm")
    assert labels.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["spec"]["replicas"] == 2
    assert tier(engine(objects)) == TIER


@needs_chart
@pytest.mark.parametrize("name", ENGINES)
def test_engines_mount_the_volume_and_give_up_their_gpu_first(name: str) -> None:
    objects = rendered(values(name))
    (claim,) = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    deployment = named(objects, "Deployment", "vllm-mistral-deployment-vllm")
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    claims = [each["persistentVolumeClaim"] for each in volumes if "persistentVolumeClaim" in each]
    assert claims == [{"claimName": claim["metadata"]["name"]}]
    assert claim["spec"]["accessModes"] == model(values(name))["pvcAccessMode"]
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    token = [each for each in engine(objects)["env"] if each["name"] == "HF_TOKEN"]
    assert token[0]["valueFrom"]["secretKeyRef"] == {"name": "hf-token", "key": "token"}


@needs_chart
def test_the_sidecar_shares_memory_with_the_engine() -> None:
    deployment = named(rendered(values(MULTIPROCESS)), "Deployment", "vllm-mistral-deployment-vllm")
    pod = deployment["spec"]["template"]["spec"]
    of = container(pod)
    config = json.loads(after(of["command"], "--kv-transfer-config") or "")
    assert config["kv_connector"] == "LMCacheMPConnector"
    assert [name for name in environment(of) if name.startswith("LMCACHE")] == []
    (mount,) = [each for each in of["volumeMounts"] if each["mountPath"] == "/dev/shm"]
    assert sidecar()["volumeMounts"] == [mount]
    assert mount["name"] in [each["name"] for each in pod["volumes"]]
    assert sidecar()["command"][0].rpartition("/")[0] == of["command"][0].rpartition("/")[0]
    pod.update(patch())
    validate(deployment)


@needs_chart
def test_engines_and_router_are_scraped() -> None:
    objects = rendered(values(OFFLOAD, MONITORING))
    services = [each for each in objects if each["kind"] == "Service"]
    monitors = [each for each in objects if each["kind"] == "ServiceMonitor"]
    assert len(monitors) == 2
    for each in monitors:
        selector = each["spec"]["selector"]["matchLabels"].items()
        (found,) = [s for s in services if selector <= s["metadata"]["labels"].items()]
        (endpoint,) = each["spec"]["endpoints"]
        assert endpoint["port"] in [port["name"] for port in found["spec"]["ports"]]
    dashboards = [each for each in objects if each["kind"] == "ConfigMap"]
    assert [each for each in dashboards if "grafana_dashboard" in each["metadata"]["labels"]]


@needs_chart
def test_the_guide_names_what_the_chart_makes() -> None:
    objects = rendered(values(REPLICAS))
    text = GUIDE.read_text()
    forwarded = set(re.findall(r"svc/(\S+) \d+:(\d+)", text)) - {("vllm-grafana", "80")}
    made = {
        (each["metadata"]["name"], str(port["port"]))
        for each in objects
        if each["kind"] == "Service"
        for port in each["spec"]["ports"]
    }
    assert forwarded
    assert forwarded <= made
    for name in re.findall(r"kubectl patch deployment (\S+)", text):
        named(objects, "Deployment", name)
