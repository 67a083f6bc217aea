"""What engines of several files are started with."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def not_compiled() -> Iterator[None]:
    """At the first reply with `logprobs` vLLM compiles what counts ranks, for half a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        yield
