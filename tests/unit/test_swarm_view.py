"""What the terminal says of a run."""

from typing import Any

import pytest

from loadgen.stats.summary import summarize
from loadgen.stats.tally import Tally
from loadgen.swarm.view import summary_lines

SERVER = {"computed_prompt_tokens": 25, "cached_prompt_tokens": 75, "hit_rate": 0.75}


@pytest.mark.parametrize(
    ("server", "cached_share", "said"),
    [
        (None, None, "the host tells nothing about its cache"),
        (None, 0.6, "60.0% from cache, by the replies of the host (no /metrics of vLLM)"),
        (None, 0.0, "0.0% from cache, by the replies"),
        (SERVER, 0.6, "25 computed, 75 from cache, hit rate 75.0%"),
    ],
)
def test_the_cache_is_told_by_the_engine_else_by_the_replies(
    server: dict[str, Any] | None, cached_share: float | None, said: str
) -> None:
    summary = summarize(
        Tally(), duration_s=1.0, diversity=None, server=server, client_saturated=False
    )
    told = {"cached_share": cached_share, "stats_reset_s": None, "lost_workers": 0}
    (line,) = [each for each in summary_lines(summary | told) if each.startswith("prompt tokens")]
    assert said in line
