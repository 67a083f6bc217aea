"""The profile that `--kv-codec cachegen:FILE` names must be one of the model that is served."""

import json
from pathlib import Path

import numpy as np
import pytest

from kv_tiers.codecs import CacheGenProfile
from loadgen.errors import UsageError
from loadgen.targets.catalog import load_catalog
from loadgen.targets.target import TargetSettings, check_target

CONFIG = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 512,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def check(model: Path, file: Path, target: str = "vllm-lmcache-codec") -> None:
    check_target(load_catalog()[target], TargetSettings(str(model), kv_codec=f"cachegen:{file}"))


def write_profile(file: Path, layers: int = 4, heads: int = 2, channels: int = 128) -> Path:
    zeros = np.zeros((layers, 2, 8, channels), dtype=np.uint16)
    CacheGenProfile.fitted([zeros], heads=heads).write(file)
    return file


def test_the_profile_of_the_model_is_taken(model: Path, tmp_path: Path) -> None:
    file = write_profile(tmp_path / "cachegen.json")
    check(model, file)


@pytest.mark.parametrize("other", [{"layers": 3}, {"heads": 4}, {"channels": 256}])
def test_that_of_another_model_is_refused(
    other: dict[str, int], model: Path, tmp_path: Path
) -> None:
    file = write_profile(tmp_path / "cachegen.json", **other)
    with pytest.raises(UsageError, match="is the profile of another model than"):
        check(model, file)


def test_what_is_no_profile_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--kv-codec: .*No such file"):
        check(model, tmp_path / "none.json")
    with pytest.raises(UsageError, match=r"--kv-codec: .*is no profile of CacheGen"):
        check(model, model / "config.json")
    with pytest.raises(UsageError, match=r"--kv-codec: .*it is a device"):
        check(model, Path("/dev/zero"))
    check(model, Path("/dev/zero"), "vllm-lmcache")  # which has no codec
