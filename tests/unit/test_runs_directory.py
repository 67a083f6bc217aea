"""The run directory: claimed once, whole at any time, readable as CSV."""

import csv
import errno
import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.launch.supervised import side_by_side
from loadgen.runs.csv_log import CsvLog, to_csv
from loadgen.runs.directory import check_directory, open_directory, require_file, require_writable
from loadgen.runs.json_file import read_json, write_json
from loadgen.runs.machine import CONTEXT_KEYS, hide_variables, machine, without_secrets
from loadgen.targets.context_scheduler import KEYS


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    check_directory(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    directory = open_directory(tmp_path / "run")
    directory.describe({"seed": 1})
    directory.close()
    with pytest.raises(UsageError, match="already holds a run"):
        open_directory(tmp_path / "run")


@pytest.mark.parametrize("name", ["requests.csv", "client_metrics.csv", "batches.csv"])
def test_no_file_of_others_is_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"already holds {name}: name another directory"):
        open_directory(tmp_path)
    with pytest.raises(FileExistsError):
        CsvLog(tmp_path / name, ["a"])
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "mine")]


@pytest.mark.parametrize("name", ["sweep.json", "saturate.json", "study.json"])
def test_a_series_of_runs_is_no_place_for_another(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    check_directory(tmp_path, name)
    with pytest.raises(UsageError, match=f"already holds {name}: name another directory"):
        check_directory(tmp_path, "another.json")


@pytest.mark.parametrize(
    ("number", "code"), [(errno.ENOSPC, 6), (errno.EROFS, 6), (errno.EACCES, 2)]
)
def test_what_a_disk_does_not_take_is_one_line(
    number: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path) -> None:
        raise OSError(number, os.strerror(number), *names)

    monkeypatch.setattr("loadgen.cli.sweep.read_definition", refuse)
    for names in ((), ("x",)):
        assert main(["sweep", "x.toml"]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert f"cannot be used ({os.strerror(number)})" in line
        assert ("'x'" if names else "a file") in line


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        check_directory(tmp_path / "file" / "run")


def test_a_place_that_may_not_be_looked_into_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To root nothing is closed: the system's answer is made."""
    stat = Path.stat

    def refuse(path: Path, **settings: bool) -> os.stat_result:
        if tmp_path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **settings)

    monkeypatch.setattr(Path, "stat", refuse)
    closed = tmp_path / "x.py"
    host = ("--host", "http://127.0.0.1:9")
    for check in (check_directory, require_writable, lambda path: require_file(path, "--html")):
        with pytest.raises(UsageError, match=r"x\.py cannot be written \(Permission denied\)"):
            check(closed)
    for words in (("run", str(closed), *host), ("report", str(closed)), ("simulate", str(closed))):
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "Permission denied" in line


def test_facts_add_up(tmp_path: Path) -> None:
    directory = open_directory(tmp_path)
    directory.describe({"seed": 1})
    directory.describe({"exit_code": 0})
    directory.close()
    assert read_json(tmp_path / "run.json") == {"seed": 1, "exit_code": 0}


def test_broken_json_reads_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"seed": 1, "opt')
    assert read_json(tmp_path / "half.json") == {}
    assert read_json(tmp_path / "none.json") == {}
    (tmp_path / "deep.json").write_text("[" * 100_000)
    assert read_json(tmp_path / "deep.json") == {}


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_json_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_json(tmp_path / "x.json", {})
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_a_name_that_is_no_utf8_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"run": os.fsdecode(b"r\xff")})
    assert read_json(tmp_path / "x.json") == {"run": "r?"}


def test_cells() -> None:
    assert to_csv([[None, True, False, 1.5, 2.0, 0.0000001, 'a,"b"\n']]) == (
        ',true,false,1.5,2,0,"a,""b""\n"\n'
    )


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("'=a", "''=a"),
        *((f"{first}a", f"'{first}a") for first in "=+-@\t"),
        ("\ra", '"\'\ra"'),
        *((text, text) for text in ("mix-1", "o'neill", "'a", "'", "", "a=b")),
    ],
)
def test_no_text_is_a_formula(text: str, cell: str) -> None:
    assert to_csv([[text, -1.5, -1]]) == f"{cell},-1.5,-1\n"


@pytest.mark.parametrize("batched", [False, True])
def test_batches_have_a_file_only_where_there_are_some(tmp_path: Path, batched: bool) -> None:
    directory = open_directory(tmp_path / "run", batched)
    directory.flush()
    directory.close()
    assert (tmp_path / "run" / "batches.csv").is_file() is batched


def test_rows_are_there_after_a_flush(tmp_path: Path) -> None:
    log = CsvLog(tmp_path / "rows.csv", ["a", "b"])
    log.append([[1, "x"], [2, None]])
    log.append_text("3,y\n")
    log.flush()
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1", "x"], ["2", ""], ["3", "y"]]
    log.close()
    log.flush()


def test_header_values_are_hidden() -> None:
    line = ["kvswarm", "--header", "A: secret", "--header=B: secret", "--heade", "C: secret"]
    hidden = without_secrets([*line, "--headless", "run"])
    assert "secret" not in json.dumps(hidden)
    assert hidden[-2:] == ["--headless", "run"]


@pytest.mark.parametrize(
    "words",
    [
        ("--engine-arg=--hf-token=secret",),
        ("--engine-arg", "--hf-token=secret"),
        ("--engine-arg=--api-key", "--engine-arg=secret"),
        ("--engine-arg=--api-key", "--engine-arg", "secret"),
        ("--api-key", "secret"),
        ("--engine-arg=--key=secret",),
        ("--key", "secret"),
        ("--redis_password=secret",),
        ("--engine-arg=--api-key", "--engine-arg=secret-1", "--engine-arg=secret-2"),
        ("--engine-arg", "--api-key", "--engine-arg", "secret-1", "--engine-arg", "secret-2"),
        ("--api-key", "secret-1", "secret-2", "secret-3"),
        ('--engine-arg=--kv-transfer-config={"extra": {"s3_access_key": "secret"}}',),
        ("--kv-transfer-config", '{"extra": {"s3_access_key": "secret"}}'),
        ("--lmcache-url=redis://:secret@h:6379",),
        ("--key-host", "http://u:secret@h"),
        ("--rag-url", "http://h/?a=1&api_key=secret#x"),
    ],
)
def test_secrets_of_an_engine_are_hidden(words: tuple[str, ...]) -> None:
    hidden = without_secrets(["kvswarm", "run", *words, "-u", "2"])
    assert "secret" not in json.dumps(hidden)
    assert len(hidden) == 4 + len(words)
    assert [word.split("=")[0] for word in hidden[:2]] + hidden[-2:] == [
        "kvswarm",
        "run",
        "-u",
        "2",
    ]


def test_what_only_sounds_like_a_secret_is_recorded() -> None:
    words = ["--kv-tokens", "64", "--max-num-batched-tokens=9", "--engine-arg=--context-tokens=5"]
    words += ["--tokenizer", "m", "--key-host", "h", "--sort-key", "--seed", "1", "--by-key", "-u"]
    words += ["--key", "prefix", *(f"--key={each}" for each in KEYS)]
    assert CONTEXT_KEYS == KEYS
    assert without_secrets(words) == words
    variables = {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": "secret", "KEY": "secret"}
    variables["REMOTE_URL"], variables["LAKE"] = (
        "redis://:secret@h:1",
        "s3://b?sig=secret&max_tokens=5",
    )
    hidden = {"HF_TOKEN": "***", "KEY": "***"}
    hidden |= {"REMOTE_URL": "redis://***@h:1", "LAKE": "s3://b?sig=***&max_tokens=5"}
    assert hide_variables(variables) == {**variables, **hidden}


@pytest.mark.parametrize(
    "body",
    [
        '{"api_key": "secret"}',
        '{"nested": [{"Authorization": {"x": ["secret"]}}]}',
        '{"a": 1, "user_password": "secret", "hf_token": "secret"}',
        '{"pwd": "secret", "pass": "secret", "jwt": "secret", "db_pass": ["secret"]}',
        '{"api_key": 123456789, "auth": {"pin": 123456789}}',
        '{"callback": "http://u:secret@h", "other": ["http://h?token=secret"]}',
        '{"headers": {"X-Team": "secret"}, "extra_headers": {"n": 123456789}}',
        "no JSON with a secret",
    ],
)
def test_keys_in_an_extra_body_are_hidden(body: str) -> None:
    for line in (["--extra-body", body], [f"--extra-b={body}"]):
        hidden = json.dumps(without_secrets(["kvswarm", *line]))
        assert ("secret" in hidden, "123456789" in hidden) == (False, False)


def test_a_file_behind_the_keys_of_an_engine_is_recorded() -> None:
    words = ["--engine-arg=--api-key", "--engine-arg=a", "batched", "--key", "prefix", "rag"]
    hidden = [*words[:1], "--engine-arg=***", *words[2:]]
    assert without_secrets(words) == hidden


def test_the_rest_of_an_extra_body_is_recorded() -> None:
    body = '{"top_k": 1, "min_tokens": 4, "stop_token_ids": [1, 2], "pass_through": "x", "a": {}}'
    assert without_secrets(["--extra-body", body]) == ["--extra-body", body]


def test_side_by_side_shows_a_dash_for_what_a_run_has_not(tmp_path: Path) -> None:
    few = {"ttft_ms": {"count": 19, "p50": 7.0, "p95": 9.0}, "e2e_ms": {"count": 1, "p50": 8.0}}
    told = {"requests_per_s": 12.34, "metrics": few}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    text = io.StringIO()
    table = side_by_side({"mine": tmp_path, "none": tmp_path / "nowhere"})
    Console(width=100, file=text).print(table)
    rows = {line.split("  ")[0]: line.split()[-2:] for line in text.getvalue().splitlines()}
    assert rows["requests/s"] == ["12.3", "-"]
    assert rows["requests ok"] == ["-", "-"]
    assert rows["TTFT p50 (ms)"] == ["7", "-"]
    assert rows["TTFT p95 (ms)"] == ["-", "-"]
    assert rows["end-to-end p50 (ms)"] == ["8", "-"]


def test_rows_of_retrieval_are_there_where_a_run_has_retrieved(tmp_path: Path) -> None:
    def titles(refused_share: float | None) -> set[str]:
        labels = {"label_accuracy": 1.0, "refused_share": refused_share}
        (tmp_path / "summary.json").write_text(json.dumps(labels))
        return set(side_by_side({"mine": tmp_path, "none": tmp_path / "nowhere"}).columns[0].cells)

    assert titles(0.25) - titles(None) == {"labels right"}


def test_the_machine_is_told_with_its_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 1\nmodel name\t: Some CPU @ 2 GHz \n")
    assert machine(cpuinfo)["cpu"] == "Some CPU @ 2 GHz"
    cpuinfo.write_text("processor\t: 0\n")
    assert machine(cpuinfo)["cpu"] is None
    assert machine(tmp_path / "none")["cpu"] is None
