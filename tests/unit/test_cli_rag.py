"""`kvswarm rag` knows the trained model by the name that `--model` knows."""

import pytest

from loadgen.cli.rag import with_folder
from loadgen.launch import target_run
from loadgen.targets.trained_model import TRAINED

KIND = ("--embedder", "hf-causal-mean")


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(name: str) -> str:
        return "/models/trained" if name == TRAINED else name

    monkeypatch.setattr(target_run, "model_named", named)


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        (
            ("label", TRAINED, *KIND, "--embedder-model", TRAINED),
            ("label", TRAINED, *KIND, "--embedder-model", "/models/trained"),
        ),
        (
            ("index", "--embedder-model=trained", "--embedder=hf-encoder", "--path", "a"),
            (
                "index",
                "--embedder-model",
                "/models/trained",
                "--embedder=hf-encoder",
                "--path",
                "a",
            ),
        ),
    ],
)
def test_the_folder_stands_for_the_name(given: tuple[str, ...], passed_on: tuple[str, ...]) -> None:
    assert with_folder([*given]) == [*passed_on]


def test_a_server_may_call_its_model_so() -> None:
    given = ["serve", "--embedder", "openai", "--embedder-model", TRAINED]
    assert with_folder(given) == given
