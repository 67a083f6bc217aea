"""Which cells make the twins of `make bench-twin`, and which are held out."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from twin_bench import ALONE, BEHIND, CELLS, KINDS, REPEATS, cells_of, kind_of, name_of, split

from loadgen.errors import UsageError
from loadgen.sweep.definition import Definition, read_definition
from loadgen.sweep.matrix import cells_of as planned_cells
from loadgen.sweep.table import MadeCell


def written(folder: Path, definition: Definition) -> Path:
    """As if all of it had been run."""
    plans = planned_cells(definition)
    (folder / "sweep.json").write_text(json.dumps({"cells": {each.cell_id: {} for each in plans}}))
    for plan in plans:
        for repeat in range(1, definition.repeats + 1):
            run = folder / "cells" / f"{plan.cell_id}-{repeat}"
            run.mkdir(parents=True)
            axes = {key: str(value) for key, value in plan.axes.items()}
            cell = MadeCell(plan.cell_id, axes, {}, repeat, repeat, 1, 0, 1.0)
            (run / "cell.json").write_text(json.dumps(asdict(cell)))
            (run / "run.json").write_text(json.dumps({"exit_code": 0}))
    return folder


def test_no_cell_that_made_a_twin_is_held_out(tmp_path: Path) -> None:
    cells, faults = cells_of(written(tmp_path, read_definition(CELLS)))
    assert not faults
    made_of, seen, unseen = split(cells)
    assert len(seen) + len(unseen) == len(cells)
    assert len(unseen) >= 24
    assert not {id(runs) for runs in seen} & {id(runs) for runs in unseen}
    used = {path for paths in made_of.values() for path in paths}
    assert not used & {path for runs in unseen for _, path in runs}
    assert len(used) == REPEATS * sum(kind.made_of for kind in KINDS)
    assert all(
        ("-fleet" in path.name) is (name == BEHIND) for name in made_of for path in made_of[name]
    )
    assert {kind_of(runs).title for runs in unseen} == {kind.title for kind in KINDS}
    assert set(made_of) == {ALONE, BEHIND}
    assert len({name_of(runs) for runs in cells.values()}) == len(cells)


def test_a_run_that_is_no_witness_is_named_and_moves_no_cell(tmp_path: Path) -> None:
    cells, _ = cells_of(written(tmp_path, read_definition(CELLS)))
    _, seen, unseen = split(cells)
    (run, *others) = (path for _, path in unseen[0])
    (run / "run.json").write_text(json.dumps({"exit_code": 5}))
    fewer, faults = cells_of(tmp_path)
    assert len(faults) == 1
    assert "client was saturated" in faults[0]
    _, still_seen, still_unseen = split(fewer)
    assert [name_of(runs) for runs in still_seen] == [name_of(runs) for runs in seen]
    assert [path for _, path in still_unseen[0]] == others
    for each in others:
        (each / "cell.json").unlink()
    with pytest.raises(UsageError, match="no run of"):
        cells_of(tmp_path)
