"""What the study of KV in eight bits says, of runs made by hand."""

from pathlib import Path

import pytest
from study_cells import Made, cell, noisy

from dashboards.studies import halved as halved_module
from dashboards.studies.cell import Cells, StudyCell
from dashboards.studies.halved import halved
from loadgen.locality.measured import MeasuredRun

TOKEN_BYTES = {"vllm": 4096, "vllm-fp8": 2048}
REPEATS = (1, 2, 3)


def made(folder: Path, target: str, kv_tokens: int, ttft_ms: float) -> list[StudyCell]:
    cells = []
    for seed in REPEATS:
        times = Made(noisy(ttft_ms, 0.02, seed))
        cells.append(cell(folder, "halved", times, seed, target=target, kv_tokens=kv_tokens))
    return cells


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[Path, tuple[str, int]]:
    """Runs whose hit rate is a share of 16,384 tokens and whose prediction is a point above."""
    known: dict[Path, tuple[str, int]] = {}

    def told(run: Path) -> MeasuredRun:
        tokens = known[run][1]
        return MeasuredRun(str(run), tokens, tokens / 16384, tokens / 16384 + 0.01, 60, 1)

    monkeypatch.setattr(halved_module, "measured_run", told)
    monkeypatch.setattr(
        halved_module, "run_bytes_per_token", lambda run: TOKEN_BYTES[known[run][0]]
    )
    return known


def test_twice_the_tokens_are_set_against_the_same_memory(
    tmp_path: Path, measured: dict[Path, tuple[str, int]]
) -> None:
    arms = [("vllm", 4096, 400.0), ("vllm-fp8", 8192, 200.0), ("vllm", 16384, 50.0)]
    cells = [each for arm in arms for each in made(tmp_path, *arm)]
    measured |= {
        each.run: (each.settings["target"], int(each.settings["kv_tokens"])) for each in cells
    }
    answer = halved(Cells(tuple(cells)))
    assert answer.short == (
        "In the memory of 4,096 tokens, KV in eight bits has 50 % of the prompt tokens from the"
        " cache (foretold 51 %), in 16 bits 25 %."
    )
    text = " ".join(answer.sentences)
    assert "A token takes 4,096 bytes in 16 bits and 2,048 in eight." in text
    assert "Over 6 runs the prediction is at most 1.0 points of hit rate off" in text
    assert "2.0 times as fast with 4,096 tokens" in text
    assert "16,384" not in text, "it has no other side"
    rows = [row[:3] for row in answer.tables[0].rows]
    assert rows == [("4,096", "16", "4,096"), ("4,096", "8", "8,192")]


def test_without_a_run_in_eight_bits_nothing_is_said(tmp_path: Path) -> None:
    assert halved(Cells(tuple(made(tmp_path, "vllm", 4096, 400.0)))).short == "Not measured."
