"""What a run says of replies that are complete and lack something."""

import pytest
from replay_host import ReplayHost, RunCase


def test_an_unknown_figure_keeps_no_objective_and_that_is_said(run_case: RunCase) -> None:
    ran = run_case("slo-of-a-figure-nobody-has", "--slo", "tpot_ms<=1")
    replies = len(ran.rows)
    assert ran.code == 0
    assert ran.json("summary.json")["goodput_share"] == 0.0
    assert f"token counts: {replies} of {replies} replies came without them" in ran.output


def test_replies_without_any_output_are_told(replays: ReplayHost, run_case: RunCase) -> None:
    finish = 'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    replays.add("empty", {"parts": [[50, finish]]})
    ran = run_case("empty", "-t", "1s")
    assert f"output: {len(ran.rows)} of {len(ran.rows)} replies brought none" in ran.output
    assert "brought none" not in run_case("missing-usage-unsaid", "-t", "1s").output


@pytest.mark.parametrize("model", [("--model", "m"), ()])
def test_counters_are_asked_with_the_key_and_are_those_of_the_model(
    run_case: RunCase, model: tuple[str, ...]
) -> None:
    """The only one that the host serves, named or not."""
    key = ("--header", "Authorization: Bearer sk-secret-123456")
    ran = run_case("two-models-on-one-page", *key, model=model)
    summary = ran.json("summary.json")
    assert ran.code == 0, ran.output
    assert summary["server"]["hit_rate"] == 0.6
    assert summary["server_note"] is None
