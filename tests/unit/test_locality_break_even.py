"""`kvswarm tiers`: from which bandwidth and length on loading KV is faster than computing it."""

import json
from pathlib import Path

import pytest
from study_cells import Made, write_run

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.locality.break_even import Computing, Link
from loadgen.locality.prefill import prefill_rate

COMPUTING = Computing(bytes_per_token=100_000, tokens_per_s=5_000)


def test_at_the_break_even_bandwidth_both_take_the_same() -> None:
    assert COMPUTING.break_even_bytes_per_s == 500e6
    link = Link("even", 500e6)
    assert COMPUTING.loaded_s(link, 1000) == pytest.approx(COMPUTING.computed_s(1000)) == 0.2
    assert COMPUTING.pays_from_tokens(link) is None
    assert COMPUTING.pays_from_tokens(Link("slow", 499e6)) is None


def test_a_link_with_latency_pays_from_a_length_on() -> None:
    link = Link("fast", 1e9, latency_s=0.01)
    tokens = COMPUTING.pays_from_tokens(link)
    assert tokens == pytest.approx(100)
    assert COMPUTING.loaded_s(link, 100) == pytest.approx(COMPUTING.computed_s(100))
    assert COMPUTING.loaded_s(link, 99) > COMPUTING.computed_s(99)
    assert COMPUTING.pays_from_tokens(Link("at once", 1e9)) == 0


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("25GB/s", Link("25GB/s", 25e9)),
        ("100Gbit/s", Link("100Gbit/s", 12.5e9)),
        ("nvme=7 GB/s,0.1ms", Link("nvme", 7e9, 1e-4)),
        ("lan=10Gbps, 20us", Link("lan", 1.25e9, 2e-5)),
        ("a=b=1MB/s", Link("a=b", 1e6)),
    ],
)
def test_links_are_read_in_bits_and_bytes(text: str, link: Link) -> None:
    found = Link.parse(text)
    assert (found.name, found.bytes_per_s) == (link.name, pytest.approx(link.bytes_per_s))
    assert found.latency_s == pytest.approx(link.latency_s)


@pytest.mark.parametrize("text", ["", "fast", "7", "7GB", "7GB/s,", "7GB/s,2", "-1GB/s", "0GB/s"])
def test_what_is_no_link_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiers", "--prefill-rate", "10", "--bytes-per-token", "10", f"--link={text}"]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--link" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--prefill-rate TOKENS/S, or the directory of a RUN"),
        (["--prefill-rate", "0"], "--prefill-rate 0: give a number above 0"),
        (["--prefill-rate", "nan"], "--prefill-rate nan: give a number above 0"),
        (["--prefill-rate", "9", "--context-tokens", "inf"], "--context-tokens inf"),
        (["--prefill-rate", "9", "--bytes-per-token", "0"], "--bytes-per-token 0"),
        (["--prefill-rate", "9", "--bytes-per-token", "9" * 400], "--bytes-per-token 999"),
        (["--prefill-rate", "9", "--context-tokens", "1e305"], "--context-tokens 1e+305"),
        (["--prefill-rate", "1e-300"], "--prefill-rate 1e-300"),
        (["--prefill-rate", "9", "--link", f"{'9' * 400}GB/s"], "give a rate from 1 B/s to"),
        (["--prefill-rate", "9", "--link", f"0.{'0' * 310}1B/s"], "give a rate from 1 B/s to"),
        (["--prefill-rate", "9", "--model", "no/such"], "no config.json there"),
        (["/no/such/run"], "/no/such/run"),
        (
            ["--prefill-rate", "9", "--bytes-per-token", "9", "--model", "m"],
            "--model tells nothing that is not given: leave out --bytes-per-token",
        ),
        (
            ["/no/such/run", "--prefill-rate", "9", "--bytes-per-token", "9"],
            "RUN /no/such/run tells nothing that is not given",
        ),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiers", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_the_table_tells_break_even_and_each_link(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes-per-token", "100000", "--prefill-rate", "5000", "--context-tokens", "1000"]
    assert main(["tiers", *words, "--link", "a=1GB/s,10ms", "--link", "b=100MB/s"]) == 0
    told = capsys.readouterr().out
    assert "break-even bandwidth: 500 MB/s" in told
    assert "--l1-gb 1 holds 10,737 tokens" in told
    rows = {line.split("  ")[0]: line for line in told.splitlines()}
    assert rows["a"].split()[1:4] == ["1", "GB/s", "110"]
    assert rows["a"].endswith("1.82 times as fast  100 tokens")
    assert rows["b"].endswith("5 times as long     never")
    assert main(["tiers", *words, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["break_even_bytes_per_s"] == 500e6
    assert len(found["links"]) > 3


def test_large_figures_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes-per-token", "327680", "--prefill-rate", "500", "--context-tokens", "1000000"]
    assert main(["tiers", *words, "--link", "a=999.9MB/s"]) == 0
    told = capsys.readouterr().out
    assert "2,000 s" in told
    assert "1,000 MB/s" in told
    assert "e+" not in told


def test_the_rate_of_a_run_is_the_slope_of_its_first_tokens(tmp_path: Path) -> None:
    """0.1 ms a computed token, whatever else a first token waits for."""
    prompt, cached = [1000.0] * 40, [0.0, 900.0] * 20
    ttft_ms = [30 + (p - c) / 10 for p, c in zip(prompt, cached, strict=True)]
    write_run(tmp_path / "run", Made(ttft_ms, prompt, cached))
    found = prefill_rate(tmp_path / "run")
    assert found.tokens_per_s == pytest.approx(10_000)
    assert "40 requests" in found.words


def test_a_run_that_does_not_tell_the_rate_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "alike", Made([30.0] * 40))
    with pytest.raises(UsageError, match="computed about as many tokens"):
        prefill_rate(tmp_path / "alike")
    write_run(tmp_path / "flat", Made([30.0] * 40, [1000.0] * 40, [0.0, 900.0] * 20))
    with pytest.raises(UsageError, match="does not grow"):
        prefill_rate(tmp_path / "flat")
    write_run(tmp_path / "crowd", Made([30.0] * 40, [1000.0] * 40, [0.0, 900.0] * 20))
    run = tmp_path / "crowd" / "run.json"
    run.write_text(json.dumps({**json.loads(run.read_text()), "users": 8}))
    with pytest.raises(UsageError, match="had 8 users"):
        prefill_rate(tmp_path / "crowd")
