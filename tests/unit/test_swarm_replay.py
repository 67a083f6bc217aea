"""What is checked of a trace before anything is sent, and how its turns keep their order."""

import argparse
import json
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.swarm.options.flags import add_options
from loadgen.swarm.options.replay import Replay, check_replay, check_trace_fit, pacer_of
from loadgen.swarm.options.swarm_options import SwarmOptions


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    times = [(0, 700, 5, [0, 7]), (500, 1600, 9, [0, 7, 8, 9])]
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in times))
    return path


def options(*given: object) -> SwarmOptions:
    parser = argparse.ArgumentParser()

    class Locusts:
        """Locust's parser takes more than argparse's."""

        def add_argument(self, flag: str, **settings: object) -> None:
            for name in ("env_var", "include_in_web_ui"):
                settings.pop(name, None)
            parser.add_argument(flag, **settings)  # type: ignore[arg-type]

    add_options(Locusts())
    return SwarmOptions.read(vars(parser.parse_args(list(map(str, given)))))


def checked(*given: object, batched: bool = False) -> Replay | None:
    read = options(*given)
    replay = check_replay(read, batched)
    pacer_of(read)
    return replay


def test_a_trace_may_be_replayed(trace: Path) -> None:
    replay = checked("--trace", trace, "--arrivals", "trace", "--trace-speed", 2)
    assert replay is not None
    assert replay.note == f"replaying 2 requests of {trace} over 0 s, 2 times as fast as it was"
    assert replay.to_wire(2) == {"common": [0, 7], "shares": [1, 1]}
    assert checked() is None
    assert checked("--trace", trace) is not None, "in a closed loop, too"


@pytest.mark.parametrize(
    ("more", "telling"),
    [
        (("--trace", "/nowhere"), "/nowhere cannot be read"),
        (("--arrivals", "trace"), "give --trace FILE"),
        (("--session-by", "conversation"), "--session-by conversation needs a trace"),
        (("--trace", "{trace}", "--arrivals", "trace", "--rate", 5), "--trace-speed"),
        (("--trace", "{trace}", "--trace-speed", 0), "--trace-speed 0 is out of range"),
        (("--trace", "{trace}", "--trace-speed", 2), "does not keep: give --arrivals trace"),
        *(
            ((f"--trace-{name}", 2), f"--trace-{name} changes a trace, and there is none")
            for name in ("speed", "length-scale", "max-tokens", "limit")
        ),
        (("--trace", "{trace}", "--trace-limit", -1), "--trace-limit -1 is out of range"),
        (("--trace", "{trace}", "--trace-max-tokens", 9), "leaves no request to replay"),
        (("--trace", "{trace}", "--labels", "shuffled"), "--labels shuffled has no meaning"),
        (("--trace", "{trace}", "--system-tokens", "9"), "--system-tokens has no meaning"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    trace: Path, more: tuple[object, ...], telling: str
) -> None:
    with pytest.raises(UsageError) as error:
        checked(*(str(each).replace("{trace}", str(trace)) for each in more))
    assert telling in str(error.value)


def test_batches_and_traces_without_times_are_refused(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="run the locustfile replay"):
        checked("--trace", trace, batched=True)
    untimed = tmp_path / "untimed.jsonl"
    untimed.write_text('{"input_length": 5, "output_length": 5}\n')
    with pytest.raises(UsageError, match="has no times: give --arrivals closed"):
        checked("--trace", untimed, "--arrivals", "trace")


def test_lengths_of_texts_are_told_to_be_estimates(trace: Path, tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "a" * 400}, {"from": "gpt", "value": "b" * 40}]
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps([{"conversations": talk}]))
    replay, plain = checked("--trace", texts), checked("--trace", trace)
    assert replay is not None
    assert plain is not None
    assert any("estimated, at 4 characters a token" in each for each in replay.changes)
    assert list(plain.changes) == []
    with pytest.raises(UsageError, match="has about 110 tokens"):
        check_trace_fit(replay, 100, None)


def test_the_longest_request_has_to_fit(trace: Path) -> None:
    replay = checked("--trace", trace)
    assert replay is not None
    check_trace_fit(replay, 1609, None)
    with pytest.raises(UsageError, match="give --trace-max-tokens 1608"):
        check_trace_fit(replay, 4096, 1608)
