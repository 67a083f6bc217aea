"""The manifests of docs/kubernetes: whether their parts fit, and command lines our parsers."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import OPTION, locust_side

from loadgen.launch.arguments import RunArguments, parse_run
from loadgen.workload.settings import Span

FOLDER = Path(__file__).parents[2] / "docs" / "kubernetes"
SWARM = list(yaml.safe_load_all((FOLDER / "swarm.yaml").read_text()))
RESULTS = yaml.safe_load((FOLDER / "results.yaml").read_text())


def part(kind: str) -> dict[str, Any]:
    (found,) = [each for each in SWARM if each["kind"] == kind]
    return dict(found)


def template(kind: str) -> dict[str, Any]:
    return dict(part(kind)["spec"]["template"])


def container(kind: str) -> dict[str, Any]:
    (found,) = template(kind)["spec"]["containers"]
    return dict(found)


def command_line(kind: str) -> RunArguments:
    words = [*container(kind)["command"], *container(kind)["args"]]
    assert words[:2] == ["kvswarm", "run"]
    return parse_run("run", words[2:])


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_every_option_of_a_command_line_exists(kind: str) -> None:
    options = set(OPTION.findall(" ".join(command_line(kind).rest)))
    assert options <= locust_side()["defaults"].keys()


def test_the_master_loads_a_host_and_waits_for_all_workers() -> None:
    master = command_line("Job")
    assert master.host == "http://vllm-router-service"
    replicas = part("Deployment")["spec"]["replicas"]
    assert {"--master", f"--expect-workers={replicas}"} < set(master.rest)
    assert {"--arrivals=poisson", "--users=0"} < set(master.rest)
    (length,) = [each for each in master.rest if each.startswith("--context-tokens=")]
    assert Span.parse(length.partition("=")[2], "--context-tokens").high > 0


def test_workers_find_the_master() -> None:
    service = part("Service")
    assert service["spec"]["selector"].items() <= template("Job")["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= (
        template("Deployment")["metadata"]["labels"].items()
    )
    (port,) = service["spec"]["ports"]
    defaults = locust_side()["defaults"]
    assert port["port"] == port["targetPort"] == defaults["--master-port"]
    assert port["port"] == defaults["--master-bind-port"]
    (listening,) = container("Job")["ports"]
    assert listening["containerPort"] == port["targetPort"]
    assert set(command_line("Deployment").rest) == {
        "--worker",
        f"--master-host={service['metadata']['name']}",
    }


def test_a_deployment_selects_its_own_pods() -> None:
    selector = part("Deployment")["spec"]["selector"]["matchLabels"]
    assert selector == template("Deployment")["metadata"]["labels"]


def test_the_run_is_kept_where_results_are_copied_from() -> None:
    claim = part("PersistentVolumeClaim")["metadata"]["name"]
    for pod in (template("Job")["spec"], RESULTS["spec"]):
        (volume,) = pod["volumes"]
        (mount,) = pod["containers"][0]["volumeMounts"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert mount["name"] == volume["name"]
        assert command_line("Job").out.is_relative_to(mount["mountPath"])


def test_one_image_is_used_everywhere_and_can_be_built() -> None:
    images = {container("Job")["image"], container("Deployment")["image"]}
    images.add(RESULTS["spec"]["containers"][0]["image"])
    (image,) = images
    build = f"docker build -f docs/kubernetes/Dockerfile -t {image} dist\n"
    assert build in (FOLDER / "Dockerfile").read_text()
    assert build in (FOLDER.parent / "guides" / "many-workers.md").read_text()
