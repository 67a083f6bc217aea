"""A model of two layers, made once."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from loadgen.targets import demo_model

    shape = demo_model.Shape(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=96)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(demo_model.SHAPES, "tiny", shape)
        return demo_model.build_model(
            tmp_path_factory.mktemp("m") / "toy", "tiny", ["Words to learn from. " * 20]
        )
