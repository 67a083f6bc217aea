"""`kvswarm compare` and `kvswarm noise` as they are typed: refusals, formats, exit codes."""

import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from compare_runs import argv, write_run

from loadgen.cli.compare import FORMATS
from loadgen.cli.main import main
from loadgen.compare.noise import read_noise
from rag_store.extras import install_command

NOISE = '{"machine": "", "target": "", "runs": [], "deviations": {}, "totals": {"errors": %s}}'
LOCUST = Path(__file__).parents[1] / "data" / "locust"
RNG = np.random.default_rng(0)
STEADY = list(100 * np.exp(0.05 * RNG.standard_normal(200)))
SLOW = [1.5 * value for value in STEADY[::-1]]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["compare", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def target(name: str = "vllm", tokens: int = 5120, *more: str, port: str = "40123") -> Any:
    return {"name": name, "usable_tokens": tokens, "argv": {"vllm": argv(*more, port=port)}}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"seed": 1}, "seed 0 against 1"),
        ({"model": "small"}, "model 'tiny' against 'small'"),
        ({"cache_state": "warm"}, "cache_state 'cold' against 'warm'"),
        ({"options": {"contexts": 8, "zipf": 0.0}}, "contexts '6' against '8'"),
        ({"target": target("vllm", 5120, "--max-num-seqs", "2")}, "seqs nothing against '2'"),
        ({"target": target("vllm-context", 9999)}, "usable_tokens '5120' against '9999'"),
        ({"command_line": ["locust", "-f", "/x/batched.py"]}, "locustfile '' against 'batched'"),
    ],
)
def test_what_is_not_comparable_is_refused(
    other: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", STEADY, **other)
    code, _, err = call(capsys, base, new)
    assert code == 2
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("other", "vary"),
    [
        ({"target": target("vllm-context", 5120, "--scheduler-cls", "x")}, ()),
        ({"target": target("vllm", 5120, "--kv", '{"port":50999}', port="50999")}, ()),
        ({"seed": 1}, ("--vary", "seed")),
        ({"options": {"contexts": 6, "zipf": 0.0, "metrics_port": 9646}}, ()),
        ({"options": {"contexts": 8, "zipf": 1.0}}, ("--vary", "contexts,zipf")),
        ({"target": target("vllm", 5120, "--max-num-seqs", "2")}, ("--vary", "target_arguments")),
    ],
)
def test_what_is_under_test_may_differ(
    other: dict[str, Any], vary: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (
        {"target": target("vllm", 5120, "--kv", '{"port":40123}')} if "--kv" in str(other) else {}
    )
    base = write_run(tmp_path / "a", STEADY, **before)
    new = write_run(tmp_path / "b", STEADY, **other)
    assert call(capsys, base, new, *vary)[0] == 0


def started(port: int, folder: str, *run: str) -> dict[str, Any]:
    """What a start of a fleet with files behind it drew for itself."""
    router = ["python", "-m", "router", "--policy", "random", "--port", str(port + 1)]
    router += ["--metrics-port", str(port + 2), "--scratch-dir", f"/tmp/kvswarm-{folder}"]
    adapter = f'{{"path":"/data/kvswarm-{folder}","nodes":["127.0.0.1:{port + 3}"]}}'
    events = f'{{"endpoint":"tcp://[::ffff:127.0.0.1]:{port + 4}"}}'
    engine = argv("--l2-adapter", adapter, "--kv-events-config", events, port=str(port))
    nodes = ["python", "--nodes", str(port + 3), "--rate-mbit", "200"]
    variables = {"router": {"HF_HUB_CACHE": f"/tmp/kvswarm-{folder}"}}
    services = {"vllm-1": engine, "router": router, "valkey": nodes}
    target = {"name": "fleet", "usable_tokens": 5120, "argv": services, "env": variables}
    return {"target": target, "command_line": ["kvswarm", "run", *run]}


def test_what_each_start_draws_for_itself_is_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "a", STEADY, **started(40000, "0" * 16, "--target", "fleet"))
    same = started(50000, "f" * 16, "unordered", "--target", "fleet")
    new = write_run(tmp_path / "b", STEADY, **same)
    assert call(capsys, base, new, "--vary", "seed")[0] == 0
    same["target"]["argv"]["valkey"][-1] = "100"
    other = write_run(tmp_path / "c", STEADY, **same)
    code, _, err = call(capsys, base, other, "--vary", "seed")
    assert (code, "--rate-mbit '200' against '100'" in err) == (2, True)


def test_another_target_is_refused_where_something_else_is_under_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "a", STEADY)
    new = write_run(tmp_path / "b", STEADY, target=target("vllm-context"))
    code, _, err = call(capsys, base, new, "--vary", "seed")
    assert (code, "target 'vllm' against 'vllm-context'" in err) == (2, True)


def test_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def side(name: str, factor: float, seeds: tuple[int, ...]) -> list[Path]:
        return [
            write_run(tmp_path / f"{name}{seed}", [factor * v for v in STEADY], seed=seed)
            for seed in seeds
        ]

    base, new, other = side("a", 1, (0, 1, 2)), side("b", 1.5, (0, 1, 2)), side("c", 1, (0, 1, 3))
    limit = ("--gate", "ttft_ms.p50<=+10%")
    assert call(capsys, "--base", *base, "--new", *new, *limit)[0] == 1
    code, _, err = call(capsys, "--base", *base, "--new", *other)
    assert (code, "seed 0, 1, 2 against 0, 1, 3" in err) == (2, True)


DEATH = {"engine": "e-1", "at_s": 5.0, "reason": "was ended", "failed": 2, "served_again_s": 1.0}


@pytest.mark.parametrize(
    ("said", "summary", "reason"),
    [
        ({"exit_code": 5}, {}, "the client was saturated"),
        ({"exit_code": 1, "user_errors": 3}, {}, "a user class raised exceptions"),
        ({}, {"client_saturated": True}, "the client was saturated"),
        ({"exit_code": 3}, {}, "the host died"),
        ({"exit_code": 3}, {"engine_deaths": [DEATH]}, "an engine died during the run"),
        ({"exit_code": 1}, {"lost_workers": 1}, "workers were lost"),
        ({"exit_code": 143}, {}, "it failed"),
        (None, {}, "it did not come to its end"),
    ],
)
def test_a_run_that_is_not_sound_decides_nothing(
    said: dict[str, Any] | None,
    summary: dict[str, Any],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", SLOW, **(said or {}))
    if said is None:
        content = json.loads((new / "run.json").read_text())
        del content["exit_code"]
        (new / "run.json").write_text(json.dumps(content))
    (new / "summary.json").write_text(json.dumps(summary))
    gate = ("--gate", "ttft_ms.mean<=+99%, ttft_ms.p50<=+10%", "--format", "json")
    code, out, _ = call(capsys, base, new, *gate)
    assert code == 4
    assert all(reason in limit["reason"] for limit in json.loads(out)["gate"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"run_time": 60}, "it was interrupted before its end (it was to take 60 s)"),
        ({"batches": 9}, "it was interrupted before its end (it was to send 9 batches)"),
        ({}, None),
    ],
)
def test_an_interrupted_run_decides_nothing_where_it_had_an_end(
    options: dict[str, Any], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "a", STEADY, options=options, interrupted=False)
    new = write_run(tmp_path / "b", STEADY, options=options, interrupted=True)
    code, out, _ = call(capsys, base, new, "--gate", "ttft_ms.mean<=+10%")
    assert code == (4 if said else 0)
    assert (f"{new}: {said}" in out) == bool(said)
    assert f"{base}: it was" not in out


@pytest.mark.parametrize("option", ["corpus", "trace"])
@pytest.mark.parametrize(
    ("base", "new", "named"),
    [
        (("/a", "1f"), ("/b", "1f"), None),
        (("/a", "1f"), ("/a", "2e"), "{}.sha256 '1f' against '2e'"),
        (("/a", "1f"), ("/a", ""), None),
        (("/a", ""), ("/b", "2e"), "{} '/a' against '/b'"),
        (("", ""), ("/b", "2e"), "{} '' against '/b'"),
    ],
)
def test_corpora_and_traces_are_compared_by_what_is_in_them(
    base: tuple[str, str],
    new: tuple[str, str],
    named: str | None,
    option: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(name: str, path: str, digest: str) -> Path:
        told = {f"{option}_sha256": digest} if digest else {}
        return write_run(tmp_path / name, STEADY, options={option: path}, **told)

    pair = run("a", *base), run("b", *new)
    code, _, err = call(capsys, *pair)
    assert code == (2 if named else 0)
    assert (named or "").format(option) in err
    assert call(capsys, *pair, "--vary", option)[0] == 0


def bare(file: Path, asked: str, first: int = 0) -> Path:
    """A requests.csv whose n-th request, of the stream's number `first` + n, is about asked[n]."""
    header = "request_id,sent_s,end_s,ttft_ms,e2e_ms,output_tokens,outcome,context_id,question_id"
    rows = [f"{first + n},{n},{n},9,9,9,ok,{each},q" for n, each in enumerate(asked)]
    file.write_text("\n".join([header, *rows]) + "\n")
    return file


def test_bare_files_are_compared_by_their_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = bare(tmp_path / "a", "xyzx" * 9), bare(tmp_path / "b", "xyzx" * 8)
    code, out, _ = call(capsys, base, new)
    assert code == 0
    assert f"not told by {base}, {new}, so not checked: num_users, model, target," in out
    other = bare(tmp_path / "c", "xyyx" * 9)
    code, _, err = call(capsys, base, other)
    assert (code, err.count("\n")) == (2, 1)
    assert "workload or seed, as request 2 is 'z/q' against 'y/q'" in err
    assert call(capsys, base, other, "--vary", "workload")[0] == 0
    assert call(capsys, base, other, "--vary", "seed")[0] == 0
    assert call(capsys, base, other, "--vary", "target")[0] == 2
    assert (
        "so not checked: workload, seed," in call(capsys, base, bare(tmp_path / "d", "xy", 90))[1]
    )
    both = ("--base", base, other, "--new", bare(tmp_path / "e", "xyyx"), new)
    assert call(capsys, *both)[0] == 0, "two seeds on each side"


def test_a_bare_file_does_not_hide_what_run_directories_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, again = (write_run(tmp_path / name, STEADY) for name in "ab")
    new = write_run(tmp_path / "c", STEADY, model="small")
    sides = ("--base", base, again / "requests.csv", "--new", new)
    code, _, err = call(capsys, *sides)
    assert (code, "model 'tiny' against 'small'" in err) == (2, True)
    code, out, _ = call(capsys, *sides, "--vary", "model")
    assert code == 0
    assert f"not told by {again / 'requests.csv'}, so not checked" in out


def test_locusts_files_are_compared_by_their_users_and_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = (LOCUST / f"{side}_stats_history.csv" for side in ("base", "new"))
    assert call(capsys, base, new)[0] == 0
    more = tmp_path / "more.csv"
    more.write_text(re.sub(r"^(\d+),3,", r"\1,30,", new.read_text(), flags=re.MULTILINE))
    code, _, err = call(capsys, base, more)
    assert (code, "num_users 3 against 30" in err) == (2, True)
    assert call(capsys, base, more, "--vary", "num_users")[0] == 0
    stats, other = LOCUST / "base_stats.csv", tmp_path / "other.csv"
    other.write_text((LOCUST / "new_stats.csv").read_text().replace("/version", "/health"))
    said = "Aggregated is not of the same requests: not every file has GET /health, GET /version"
    assert said in call(capsys, stats, other)[1]
    assert said not in call(capsys, stats, LOCUST / "new_stats.csv")[1]


def test_a_run_given_twice_is_no_repeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (write_run(tmp_path / name, STEADY) for name in "ab")
    again = tmp_path / "again"
    again.symlink_to(one)
    assert main(["noise", str(one), str(two), str(again)]) == 2
    assert "is given 2 times" in capsys.readouterr().err
    code, _, err = call(capsys, "--base", one, again, "--new", two)
    assert (code, "is given 2 times" in err) == (2, True)


def test_a_run_against_itself_passes_no_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "a", STEADY)
    (tmp_path / "again").symlink_to(run)
    code, _, err = call(capsys, run, tmp_path / "again", "--gate", "ttft_ms.mean<=+0%")
    assert (code, "is given 2 times" in err) == (2, True)


def test_proof_without_limits_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / name, STEADY) for name in "ab"]
    code, _, err = call(capsys, *runs, "--require-proof")
    assert (code, "--require-proof is of limits: give them with --gate" in err) == (2, True)


def test_what_else_differs_between_runs_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"versions": {"vllm": "0.31.0", "python": "3.11"}, "host_facts": {"version": "0.31.0"}}
    newer = {"versions": {"vllm": "0.32.0", "python": "3.11"}, "host_facts": {"version": "0.32.0"}}
    base, same = (write_run(tmp_path / name, STEADY, **told) for name in "ab")
    new = write_run(tmp_path / "c", STEADY, **newer)
    assert "differ in versions" not in call(capsys, base, same)[1]
    said = "the runs differ in versions: the host '0.31.0' against '0.32.0'; vllm '0.31.0' against"
    assert said in " ".join(call(capsys, base, new)[1].split())
    (same / "summary.json").write_text(json.dumps({"stats_reset_s": 3.0}))
    reset = f"{same}: its statistics were reset at 3 s: what was before is not counted"
    assert reset in " ".join(call(capsys, base, same)[1].split())


def test_a_simulated_run_is_said_to_be_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = write_run(tmp_path / "a", STEADY)
    simulated = {"cache_state": "simulated", "target": target() | {"simulated": {}}}
    new = write_run(tmp_path / "b", STEADY, **simulated)
    assert call(capsys, base, new)[0] == 2
    out = call(capsys, base, new, "--vary", "target,cache_state")[1]
    assert f"{new}: it is simulated: no server answered" in " ".join(out.split())


def test_noise_of_a_run_that_is_not_sound_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        write_run(tmp_path / f"n{n}", STEADY, exit_code=code) for n, code in enumerate((0, 0, 5))
    ]
    assert main(["noise", *map(str, runs)]) == 2
    assert "the client was saturated" in capsys.readouterr().err


def test_a_fault_of_its_own_is_no_broken_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("math\ndomain error")

    monkeypatch.setattr("loadgen.cli.compare._compare", fail)
    code, _, err = call(capsys, "a", "b")
    assert (code, err.count("\n")) == (70, 1)
    assert "ValueError: math domain error (test_compare_command.py, line" in err


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", SLOW)
    code, out, _ = call(capsys, base, new, "--gate", "ttft_ms.mean<=+10%", "--format", "json")
    content = json.loads(out)
    assert code == content["exit_code"] == 1
    (row,) = content["metrics"]
    assert row["change"]["low"] < 0.5 < row["change"]["high"]
    assert row["change"]["estimate"] == pytest.approx(0.5)
    assert (row["metric"], row["verdict"], row["samples"]["new"]) == ("ttft_ms.mean", "worse", 200)
    assert content["gate"][0]["outcome"] == "broken"


def test_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / 'b"<&\x07', SLOW)
    gate = "ttft_ms.mean<=+10%, makespan_s.p50<=+10%, errors<=5%"
    (base / "batches.csv").write_text("sent_s,last_reply_s,makespan_s\n0,1,1\n")
    (new / "batches.csv").write_text("sent_s,last_reply_s,makespan_s\n0,1,1\n")
    code, out, _ = call(capsys, base, new, "--gate", gate, "--format", "junit")
    suite = ElementTree.fromstring(out)
    assert code == 1
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    found = [[child.tag for child in case] for case in suite.iter("testcase")]
    assert found == [["failure"], ["error"], ["system-out"]]


def test_names_from_outside_are_only_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "=1+2|<b>[red]`x`"
    write_run(tmp_path / name, STEADY)
    write_run(tmp_path / "b", STEADY)
    _, markdown, _ = call(capsys, name, "b", "--format", "markdown")
    assert "base: '=1+2\\|\\<b\\>\\[red\\]\\`x\\`  \n" in markdown
    _, table, _ = call(capsys, name, "b")
    assert table.startswith("base '=1+2|<b>[red]`x`\n")
    _, junit, _ = call(capsys, name, "b", "--format", "junit")
    assert "'=1+2|<b>" in (ElementTree.fromstring(junit).findtext("system-out") or "")


def test_noise_is_kept_and_used_for_single_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    runs = [
        write_run(tmp_path / f"n{n}", [factor * v for v in rng.permutation(STEADY)])
        for n, factor in enumerate((1.0, 1.3, 0.8, 1.1))
    ]
    pair = (*runs[:2], "--gate", "ttft_ms.mean<=+10%")
    assert call(capsys, *pair)[0] == 1
    assert main(["noise", *map(str, runs)]) == 0
    capsys.readouterr()
    code, out, _ = call(capsys, *pair)
    assert code == 4
    assert "the spread between 4 identical runs of vllm" in out
    assert call(capsys, *pair, "--no-noise")[0] == 1


def test_noise_of_another_machine_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / f"n{n}", STEADY, machine={"cpus": 64}) for n in range(3)]
    assert main(["noise", *map(str, runs)]) == 0
    capsys.readouterr()
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", STEADY)
    assert "measure it with `kvswarm noise`" in call(capsys, base, new)[1]
    kept = next((tmp_path / "home").rglob("noise.json"))
    out = " ".join(call(capsys, base, new, "--noise", kept)[1].split())
    assert "identical runs of vllm on another machine" in out


def test_noise_of_runs_that_differ_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write_run(tmp_path / f"n{n}", STEADY, seed=n) for n in range(3)]
    assert main(["noise", *map(str, runs)]) == 2
    assert "not identical runs: seed" in capsys.readouterr().err
    assert main(["noise", str(runs[0])]) == 2


def noise(tmp_path: Path, *more: object, runs: int = 3) -> int:
    """The command, on runs that it can measure."""
    made = [write_run(tmp_path / f"n{n}", STEADY) for n in range(runs)]
    return main(["noise", *map(str, (*made, *more))])


@pytest.mark.parametrize("name", ["data.csv", "pipe", "link", "folder", "."])
def test_noise_replaces_nothing_but_noise(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    (place / "folder").mkdir(parents=True)
    (place / "data.csv").write_text("a,b\n")
    (place / "link").symlink_to("nowhere")
    os.mkfifo(place / "pipe")
    assert noise(tmp_path, "--out", place / name) == 2
    said = f"{place / name} exists and is not a file of `kvswarm noise`"
    assert said in capsys.readouterr().err
    assert sorted(each.name for each in place.iterdir()) == ["data.csv", "folder", "link", "pipe"]
    assert (place / "data.csv").read_text() == "a,b\n"
    assert stat.S_ISFIFO((place / "pipe").stat().st_mode)


def test_noise_is_measured_anew(tmp_path: Path) -> None:
    out = tmp_path / "out" / "noise.json"
    for runs, folder in ((3, "a"), (4, "b")):
        assert noise(tmp_path / folder, "--out", out, runs=runs) == 0
    assert len(read_noise(out).runs) == 4
    assert [each.name for each in out.parent.iterdir()] == ["noise.json"]


def test_noise_of_names_that_are_no_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    assert noise(folder, "--out", tmp_path / "noise.json") == 0
    assert read_noise(tmp_path / "noise.json").runs[0] == str(tmp_path / "r?" / "n0")


def test_noise_kept_under_a_name_that_is_no_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    assert noise(tmp_path, "--out", tmp_path / os.fsdecode(b"o\xff")) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("", "is no file of `kvswarm noise`"),
        ("[]", "is no file of `kvswarm noise`"),
        ("[" * 100_000, "is no file of `kvswarm noise`"),
        (NOISE % 10**400, "is no file of `kvswarm noise`"),
        (NOISE % "Infinity", "is no file of `kvswarm noise`"),
    ],
)
def test_noise_that_cannot_be_read(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", STEADY)
    kept = tmp_path / "home" / "noise.json"
    if content is not None:
        kept.parent.mkdir()
        kept.write_text(content)
        code, _, err = call(capsys, *pair)
        assert (code, err.count("\n"), "--no-noise" in err) == (2, 1, True)
        assert call(capsys, *pair, "--no-noise")[0] == 0
    code, _, err = call(capsys, *pair, "--noise", kept)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{kept} {said}" in err


def test_a_directory_is_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", STEADY)
    code, _, err = call(capsys, *pair, "--noise", tmp_path)
    assert (code, f"{tmp_path} cannot be read (Is a directory)" in err) == (2, True)


@pytest.mark.parametrize("form", FORMATS)
def test_a_closed_stdout_does_not_change_the_verdict(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", SLOW)
    gate = ["--gate", "ttft_ms.mean<=+10%", "--format", form]
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["compare", str(base), str(new), *gate]) == 1


@pytest.mark.parametrize(
    "arguments", [(), ("a",), ("a", "b", "c"), ("--base", "a"), ("a", "b", "--base", "c")]
)
def test_wrong_use(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.count("\n") == 1


def test_a_base_install_says_what_is_missing(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['scipy'] = sys.modules['scipy.stats'] = None\n"
        "from loadgen.cli.main import main\n"
        "sys.exit(main(['compare', 'a', 'b']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert f": {install_command('compare')}\n" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_early_does_not_change_the_verdict(tmp_path: Path) -> None:
    base, new = write_run(tmp_path / "a", STEADY), write_run(tmp_path / "b", SLOW)
    limit = ["--gate", "ttft_ms.mean<=+10%", "--no-noise"]
    command = [sys.executable, "-m", "loadgen.cli.main", "compare", str(base), str(new), *limit]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 1
