import random
from dataclasses import asdict
from pathlib import Path

import pytest

from loadgen.runs import emitted
from loadgen.workload.diversity import measure_diversity


def test_rows_of_many_workers_are_put_in_the_order_of_sending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitted, "CHUNK", 16)
    random.seed(7)
    sent = [(at / 10, f"context-{random.randrange(9)}") for at in range(150)]
    rows = random.sample(sent, len(sent))
    path = tmp_path / "requests.csv"
    lines = "".join(f"{at},{at},{context_id}\n" for at, context_id in rows)
    path.write_text(f"scheduled_s,sent_s,context_id\n{lines}")
    found = emitted.emitted_diversity(path, since_s=2.0)
    expected = measure_diversity(context_id for at, context_id in sent if at >= 2.0)
    assert found == asdict(expected)
    assert found["requests"] == 130
