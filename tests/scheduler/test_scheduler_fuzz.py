"""Whatever comes in whatever sequence, nothing is lost and everyone is served."""

import pytest

pytest.importorskip("vllm")

from chaos import Chaos


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_keeps_every_promise(seed: int) -> None:
    Chaos(seed).run()
