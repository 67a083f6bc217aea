from pathlib import Path

import pytest

from loadgen.targets.process import telling_lines

INFO = "(APIServer pid=1) INFO 11-21 03:20:45 [entry.py:140] Starting vLLM server"
WARNING = "(Worker pid=3) WARNING 11-21 03:20:43 [cpu_worker.py:114] libiomp is not found"
CORE = "(EngineCore pid=2) ERROR 11-21 03:20:46 [core.py:9] "
END = "RuntimeError: Engine core initialization failed. See root cause above."
REASON = "ValueError: To serve at least one request 8000 tokens are needed"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


def test_the_reason_is_told_and_not_its_consequence(log: Path) -> None:
    lines = [INFO, f"{CORE}Traceback (most recent call last):", CORE + REASON, REASON, WARNING, END]
    log.write_text("\n".join(lines))
    assert telling_lines(log) == [REASON]


def test_a_consequence_is_better_than_nothing(log: Path) -> None:
    log.write_text(f"{INFO}\n{END}\n{WARNING}\n")
    assert telling_lines(log) == [END]


def test_usage_errors_of_command_line_and_configuration_are_told(log: Path) -> None:
    usage = "api_server.py: error: unrecognized arguments: --foo"
    value = "Value error, User-specified max_model_len (9) is greater than 8"
    log.write_text(f"{usage}\npydantic_core.ValidationError: 1 error\n  {value}\n")
    assert telling_lines(log) == [usage, value]


def test_routine_output_and_warnings_tell_nothing(log: Path) -> None:
    log.write_text(f"{INFO}\n{WARNING}\nFutureWarning: old\n  warnings.warn(\n - leaked function\n")
    assert telling_lines(log) == []


def test_another_last_word_is_told_when_there_is_no_error(log: Path) -> None:
    log.write_text(f"{INFO}\n\x1b[31mcannot open shared object file\x1b[0m\n{WARNING}\n")
    assert telling_lines(log) == ["cannot open shared object file"]


def test_what_an_earlier_start_wrote_is_not_told(log: Path) -> None:
    log.write_text("ValueError: old\n")
    start = log.stat().st_size
    with log.open("a") as file:
        file.write("KeyError: 'new'\n")
    assert telling_lines(log, start) == ["KeyError: 'new'"]


def test_a_long_line_is_cut_and_a_huge_log_read_from_its_end(log: Path) -> None:
    log.write_text("OSError: early\n" + f"{INFO}\n" * 10_000 + "ValueError: " + "x" * 9_999 + "\n")
    (line,) = telling_lines(log)
    assert line.startswith("ValueError: xxx")
    assert len(line) == 300


def test_a_log_that_is_not_there_tells_nothing(log: Path) -> None:
    assert telling_lines(log) == []


def test_how_far_a_load_came_is_no_reason(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    bar = "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  6.53it/s]"
    log.write_text(f"the model is of another kind\n{bar}\n")
    assert telling_lines(log) == ["the model is of another kind"]
    log.write_text(f"{bar}\n")
    assert telling_lines(log) == []
