"""The pure parts of `make bench-client`: the mock's bytes, figures, musts, the table."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from children import Metered
from client_musts import LATE, LOAD, MUSTS, OURS, all_met, judgement, paced
from client_replies import (
    Reported,
    number_in,
    p99_gap_ms,
    replies_of_aiperf,
    replies_of_guidellm,
    replies_of_vllm,
)
from figures import error_figures, load_figures, pace_figures
from mock_server import Script
from table import REFERENCE, Results, markdown

from loadgen.client.exchange import Exchange
from loadgen.client.protocol import DONE
from loadgen.client.sse import EventStream

S = 1_000_000_000


def unchunked(body: bytes) -> bytes:
    """What a chunked body holds; each stated length must be right."""
    data = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        data, body = data + rest[:length], rest[length + 2 :]
        if not length:
            assert not body
            return data


def read(stream: bytes) -> Exchange:
    """What our own client makes of a stream."""
    exchange = Exchange(sent_at=0.0)
    *payloads, last = EventStream().feed(stream)
    for payload in payloads:
        exchange.take(payload, 1.0)
    assert last == DONE
    return exchange


def test_a_reply_in_one_write_and_one_in_events_are_the_same_stream() -> None:
    script = Script(tokens=5, gap_ns=20)
    head, _, whole = script.whole(123).partition(b"\r\n\r\n")
    events = b"".join(script.event(number, 0, 123) for number in range(5))
    assert b"chunked" in head
    assert unchunked(whole) == unchunked(events)
    exchange = read(unchunked(whole))
    assert len(exchange.token_times) == exchange.output_tokens == 5
    assert exchange.complete


def test_a_chat_begins_with_an_event_of_the_role() -> None:
    script = Script(tokens=5, gap_ns=20, is_chat=True)
    whole = unchunked(script.whole(123).partition(b"\r\n\r\n")[2])
    assert whole == unchunked(b"".join(script.event(number, 0, 123) for number in range(5)))
    assert b'"role":"assistant"' in whole.partition(b"\n\n")[0]
    exchange = read(whole)
    assert len(exchange.token_times) == exchange.output_tokens == 5
    assert exchange.complete


def test_each_event_tells_when_it_was_written_and_the_reply_its_number() -> None:
    script = Script(tokens=3, gap_ns=20)
    stream = unchunked(b"".join(script.event(n, 4711, 10**15 + n) for n in range(3)))
    times = [int(found) for found in re.findall(rb'(?:@|"t_ns":) *(\d+)', stream)]
    assert times == [10**15, 10**15 + 1, 10**15 + 2, 10**15 + 2]
    assert read(stream).prompt_tokens == 4711
    assert number_in(re.findall(r'"text":"([^"]*)"', stream.decode())[0]) == 4711
    assert number_in(" @ 123") == 0


def test_streams_started_together_do_not_speak_together() -> None:
    script = Script(tokens=32, gap_ns=20_000_000)
    gaps = sorted(script.first_gap_ns(connection) for connection in range(1, 65))
    assert gaps[0] >= script.gap_ns
    assert gaps[-1] <= 33 * script.gap_ns
    assert max(b - a for a, b in itertools.pairwise(gaps)) < script.gap_ns


def test_cost_and_speed_are_of_the_steady_part_only() -> None:
    # 100 requests a second for 4 s after the first at 10 s; the client was started at 9.5 s, had
    # used 0.3 s by its first request and uses half of a core from then on.
    done = [int((10 + (n + 1) / 100) * S) for n in range(400)]
    cpu = [(9.5, 0.0), (10.0, 0.3), (14.0, 2.3)]
    metered = Metered(9.5, 0, 2.4, 50.0, cpu)
    figures = load_figures(metered, {"first_post_ns": 10 * S, "done_ns": done})
    assert figures["requests_per_s"] == pytest.approx(100)
    assert figures["cpu_s_per_1000"] == pytest.approx(5.0)
    assert figures["whole_cpu_s_per_1000"] == pytest.approx(2.1 * 1000 / 400)
    assert figures["start_s"] == pytest.approx(0.5)
    assert figures["start_cpu_s"] == pytest.approx(0.3)


def paced_log(received_s: list[float], opening: Sequence[int] = ()) -> dict[str, object]:
    """Replies of three tokens, the first after 100 ms, then 20 ms apart."""
    replies = {
        str(number): [int((at + after) * S) for after in (0.0, 0.1, 0.12, 0.14)]
        for number, at in enumerate(received_s, 1)
    }
    done = [times[-1] for times in replies.values()]
    first = min(times[0] for times in replies.values())
    noted = {"replies": replies, "late_ns": [1000, 2000], "opening": opening}
    return {"first_post_ns": first, "done_ns": done, **noted}


def test_errors_are_reported_minus_true_without_the_opening_of_connections() -> None:
    log = paced_log([10.0, 11.4] + [11.5 + n / 10 for n in range(40)], opening=[1, 2])
    reported = [Reported(1, 900.0, 900.0), Reported(2, 900.0, 900.0)]
    reported += [Reported(number, 101.5, 19.0) for number in range(3, 43)]
    figures = error_figures(Metered(9.0, 0, 1.0, 1.0, [(9.0, 0.0), (20.0, 1.0)]), log, reported)
    assert figures["ttft_error_mean_ms"] == pytest.approx(1.5)
    assert figures["ttft_error_p99_ms"] == pytest.approx(1.5)
    assert figures["itl_error_p99_ms"] == pytest.approx(1.0)
    assert figures["server_late_p99_ms"] == pytest.approx(0.00199)


def test_too_few_replies_judge_nothing() -> None:
    log = paced_log([10.0, 11.5])
    with pytest.raises(RuntimeError, match="only 1 replies"):
        error_figures(Metered(9.0), log, [Reported(2, 101.0, 20.0)])


def test_the_gaps_of_a_reply() -> None:
    assert p99_gap_ms([1.0, 1.02, 1.04]) == pytest.approx(20.0)


def test_what_vllm_and_aiperf_say_of_a_reply(tmp_path: Path) -> None:
    texts, itls = [" #       7 word1 word2", ""], [[0.02, 0.03], []]
    vllm = {"generated_texts": texts, "ttfts": [0.1015, 0.0], "itls": itls}
    (tmp_path / "vllm.json").write_text(json.dumps(vllm))
    metrics = {
        "usage_prompt_tokens": {"value": 7, "unit": "tokens"},
        "time_to_first_token": {"value": 101.5, "unit": "ms"},
        "inter_chunk_latency": {"value": [20.0, 30.0], "unit": "ms"},
    }
    lines = [{"metadata": {}, "metrics": metrics}, {"metadata": {}, "metrics": {}}]
    (tmp_path / "profile_export.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for replies in (replies_of_vllm(tmp_path / "vllm.json"), replies_of_aiperf(tmp_path)):
        assert [reply.number for reply in replies] == [7]
        assert replies[0][1:] == pytest.approx((101.5, 29.9))


def test_a_client_that_keeps_no_gaps_has_no_error_of_itl(tmp_path: Path) -> None:
    log = paced_log([10.0] + [11.5 + n / 10 for n in range(40)])
    requests = [
        {"prompt_tokens": number, "time_to_first_token_ms": 103.0} for number in range(2, 42)
    ]
    report = {"benchmarks": [{"requests": {"successful": requests}}]}
    (tmp_path / "guidellm.json").write_text(json.dumps(report))
    reported = replies_of_guidellm(tmp_path / "guidellm.json")
    figures = error_figures(Metered(9.0, cpu=[(9.0, 0.0), (20.0, 1.0)]), log, reported)
    assert figures["ttft_error_mean_ms"] == pytest.approx(3.0)
    assert not [name for name in figures if name.startswith("itl")]


def results_at(share: float) -> Results:
    """Every figure at its limit times `share`, or over it by as much where more is better."""
    results = Results()
    for must in MUSTS:
        value = must.limit / share if must.at_least else must.limit * share
        results.add(must.scenario, OURS, {must.figure: value * (50 if must.to_bare else 1)})
        results.add(must.scenario, REFERENCE, {must.figure: 50.0})
    return results


def test_musts_are_met_at_their_limit_and_missed_beyond_it() -> None:
    assert all_met(results_at(1.0))
    assert judgement(results_at(0.9))[-1] == f"musts met: {len(MUSTS)} of {len(MUSTS)}"
    assert judgement(results_at(1.01))[-1] == f"musts met: 0 of {len(MUSTS)}"


def test_a_server_that_was_late_is_told() -> None:
    results = results_at(0.9)
    results.add(paced(64), OURS, {LATE: 0.2})
    assert not any("late" in line for line in judgement(results))
    results.add(paced(256), OURS, {LATE: 3.4})
    assert any("late by 3.4 ms" in line for line in judgement(results))


def test_one_lucky_repeat_of_the_reference_is_none() -> None:
    results = results_at(0.9)
    results.add(LOAD, OURS, {"requests_per_s": 60.0})
    assert not all_met(results)


def test_what_was_not_measured_is_not_met() -> None:
    results = results_at(0.9)
    results.values = {key: v for key, v in results.values.items() if key.scenario != LOAD}  # type: ignore[assignment]
    assert not all_met(results)
    assert any("not measured" in line for line in judgement(results))


def test_the_table_has_medians_ratios_and_gaps() -> None:
    results = Results()
    for value in (1.0, 9.0, 4.0):
        results.add(paced(64), OURS, {"ttft_error_mean_ms": value})
    results.add(paced(64), REFERENCE, {"ttft_error_mean_ms": 2.0})
    results.add(paced(256), REFERENCE, {"ttft_error_mean_ms": 3.0})
    text = markdown(results)
    assert "| 64 paced streams | TTFT error mean, ms | 4 (2.00) | 2 (1.00) |" in text
    assert "| 256 paced streams | TTFT error mean, ms | - | 3 (1.00) |" in text


@pytest.mark.parametrize(
    ("times_s", "low", "high"),
    [
        ([n / 1000 for n in range(6000)], 0.0, 0.1),
        ([(n // 100) / 10 for n in range(6000)], 20.0, 100.0),
        (list(itertools.accumulate(map(Random(7).expovariate, [1000.0] * 6000))), 0.8, 1.2),
    ],
    ids=["even", "in bunches", "Poisson"],
)
def test_the_dispersion_of_sends_tells_bunches(
    times_s: list[float], low: float, high: float, tmp_path: Path
) -> None:
    file = tmp_path / "requests.csv"
    rows = "".join(f"{at},{at + 0.002}\n" for at in times_s)
    file.write_text(f"scheduled_s,sent_s\n{rows}")
    figures = pace_figures(file, 1000.0)
    assert low <= figures["dispersion"] <= high
    assert figures["late_p99_ms"] == pytest.approx(2.0)
    assert figures["requests_per_s"] == pytest.approx(1000, rel=0.05)
    with pytest.raises(RuntimeError, match="give more --seconds"):
        pace_figures(file, 100.0)
