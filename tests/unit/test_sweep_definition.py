"""What a sweep file may say, which cells come of it, and in which order they are made."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import UsageError
from loadgen.sweep.definition import Definition, read_definition
from loadgen.sweep.matrix import CellEngine, CellPlan, Stretch, cells_of, stretches
from loadgen.sweep.table import COLUMNS, FIGURES

DOCS = Path(__file__).parents[2] / "docs"
PAGE, REFERENCE = DOCS / "guides" / "sweep.md", DOCS / "reference"
WRONG = {
    "unknown key": ('name = "x"\nrepeat = 2', "repeat: unknown key"),
    "no name": ("repeats = 2", "name: is missing"),
    "no folder": ('name = "a/b"', "'a/b' is no name for a folder"),
    "not TOML": ("name = ", "is not valid TOML"),
    "nested too deeply": ("a=" + "[" * 100_000, "is not valid TOML: it is nested too deeply"),
    "a number too long": (f"a = {'1' * 5000}", "is not valid TOML"),
    "repeats as text": ('name = "x"\nrepeats = "3"', "repeats: must be a whole number, not '3'"),
    "repeats as bool": ('name = "x"\nrepeats = true', "repeats: must be a whole number, not True"),
    "absurd repeats": ('name = "x"\nrepeats = 1000000000', "repeats: more than 10,000"),
    "no repeats": ('name = "x"\nrepeats = 0', "repeats: 0 makes no run"),
    "engine starts": ('name = "x"\nengine_starts = "never"', "engine_starts: 'never'"),
    "options no table": ('name = "x"\noptions = 3', "options: must be a table"),
    "empty axis": ('name = "x"\n[axes]\nzipf = []', "[axes] zipf: must be a list with values"),
    "axis of one": ('name = "x"\n[axes]\nzipf = 1', "[axes] zipf: must be a list with values"),
    "axis as text": ('name = "x"\n[axes]\nlabels = "none"', "labels: must be a list with values"),
    "twice in an axis": ('name = "x"\n[axes]\nzipf = [1, 2, 1]', "[axes] zipf: has 1 twice"),
    "twice": ('name = "x"\n[options]\nzipf = 1\n[axes]\nzipf = [2]', "zipf: stands in [options]"),
    "a table": ('name = "x"\n[options]\nzipf = {a = 1}', "[options] zipf: must be text, a number"),
    "not finite": ('name = "x"\n[options]\nzipf = nan', "[options] zipf: must be text, a number"),
    "a date": ('name = "x"\n[options]\nzipf = 2026-01-01', "[options] zipf: must be text"),
    "ours": ('name = "x"\n[options]\nout = "y"', "[options] out: is not for a sweep"),
    "the cache": ('name = "x"\n[axes]\nkeep-cache = [true, false]', "keep_cache = true at the top"),
    "secrets": ('name = "x"\n[axes]\nheader = ["a: b"]', "[axes] header: would be written"),
    "seeds": ('name = "x"\nrepeats = 2\n[axes]\nseed = [1, 2]', "[axes] seed: each repeat has"),
    "seed as text": ('name = "x"\n[options]\nseed = "a"', "[options] seed: must be a whole number"),
    "skip of no axis": ('name = "x"\n[[skip]]\nzipf = 1', "[skip.1] zipf: is no axis"),
    "skip of no value": ('name = "x"\n[axes]\nzipf = [1]\n[[skip]]\nzipf = 2', "2 is not among"),
    "skip of all": ('name = "x"\n[axes]\nzipf = [1]\n[[skip]]\nzipf = 1', "leaves no cell"),
    "empty skip": ('name = "x"\n[axes]\nzipf = [1]\n[[skip]]', "[skip.1]: is empty"),
    "cells no tables": ('name = "x"\ncells = [1]', "cells: must be tables"),
    "too many cells": (
        'name = "x"\n[axes]\n' + "".join(f"a{n} = {list(range(22))}\n" for n in range(3)),
        "[axes]: more than 10,000 cells: give fewer values",
    ),
    "help": ('name = "x"\n[options]\nhelp = true', "[options] help: is not for a sweep: ask"),
    "a cell twice": ('name = "x"\n[axes]\nzipf = [1]\n[[cells]]\nzipf = 1', "is there twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, name: str) -> None:
    text, said = WRONG[name]
    (tmp_path / "sweep.toml").write_text(text)
    with pytest.raises(UsageError) as raised:
        cells_of(read_definition(tmp_path / "sweep.toml"))
    assert str(tmp_path / "sweep.toml") in str(raised.value)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_example_on_the_page_is_a_sweep(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.S)
    (tmp_path / "sweep.toml").write_text(example)
    assert len(cells_of(read_definition(tmp_path / "sweep.toml"))) == 2 * 3 * 2 - 2 + 1


def test_every_column_is_on_the_page_or_in_the_reference() -> None:
    _, _, text = PAGE.read_text().partition("## cells.csv")
    reference = [REFERENCE / name for name in ("columns.md", "metrics.md")]
    named, known = (
        set(re.findall(r"`([^`]+)`", told))
        for told in (text, "".join(page.read_text() for page in reference))
    )
    of_metrics = re.compile(r"_(mean|p50|p95|p99)_ms$")
    assert set(COLUMNS) <= named
    assert {of_metrics.sub("_…_ms", name) for name in FIGURES} <= named | known


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the sweep .*none.toml"):
        read_definition(tmp_path / "none.toml")


def sweep(**more: Any) -> Definition:
    return Definition(**{"name": "x", "axes": {"zipf": [0, 1], "target": ["a", "b"]}, **more})


def ids(definition: Definition) -> list[str]:
    return [cell.cell_id for cell in cells_of(definition)]


def test_every_combination_is_a_cell() -> None:
    assert ids(sweep()) == ["zipf-0_a", "zipf-0_b", "zipf-1_a", "zipf-1_b"]


def test_combinations_are_left_out_and_others_come_on_top() -> None:
    definition = sweep(skip=({"zipf": 1, "target": "b"},), cells=({"target": "c", "l1-gb": 2},))
    *matrix, extra = cells_of(definition)
    assert [cell.cell_id for cell in matrix] == ["zipf-0_a", "zipf-0_b", "zipf-1_a"]
    assert extra.axes == {"zipf": "", "target": "c", "l1-gb": "2"}
    assert matrix[0].axes == {"zipf": "0", "target": "a", "l1-gb": ""}


def test_only_the_cells_that_are_named() -> None:
    definition = sweep(axes={}, cells=({"target": "c"}, {"target": "d"}))
    assert ids(definition) == ["c", "d"]


def test_cells_that_read_alike_have_folders_of_their_own() -> None:
    cells = ({"labels": "none"}, {"policy": "none"}, {"users": 1}, {"users": "1", "text": ""})
    found = ids(sweep(axes={}, cells=cells))
    assert len(set(found)) == 4
    assert (found[0], found[2]) == ("none", "users-1")
    assert found[1].startswith("none-")


def test_without_axes_there_is_one_cell_to_repeat() -> None:
    assert ids(Definition(name="x", repeats=3, options={"host": "http://h"})) == ["cell"]


def test_a_cell_as_words_of_a_command_line() -> None:
    options = {"users": 2, "seed": 5, "engine-arg": ["--a", "b"], "exit": True, "quiet": False}
    (cell,) = cells_of(Definition(name="x", options=options, axes={"target": ["vllm"]}))
    assert cell.words(cell.seed(2)) == [
        *("--users=2", "--engine-arg=--a", "--engine-arg=b", "--exit", "--target=vllm", "--seed=6")
    ]


def test_a_cell_has_the_same_folder_whatever_other_cells_there_are() -> None:
    axes = {"host": ["http://a:1", "http://a/1", "http://a-1"], "text": ["y" * 200, "y" * 201]}
    alone = [
        ids(Definition(name="x", axes={"host": [h], "text": ["y" * 200]})) for h in axes["host"]
    ]
    together = ids(Definition(name="x", axes=axes))
    assert {name for (name,) in alone} <= set(together)
    assert len(set(together)) == 6
    assert all(len(name) < 100 and "/" not in name and ":" not in name for name in together)


def test_secrets_of_an_engine_are_written_nowhere() -> None:
    keys = ["--hf-token=secret", "--api-key", "secret", "--seed=1"]
    more = {"key-host": "http://u:secret@h"}
    definition = sweep(options={"engine-arg": keys, **more})
    cell = cells_of(definition)[0]
    assert "secret" not in f"{definition.as_json}{cell.fixed}{cell.title}"
    assert cell.fixed["engine-arg"] == "--hf-token=*** --api-key *** --seed=1"
    assert "--engine-arg=--hf-token=secret" in cell.words(0)


def test_keys_in_headers_are_written_nowhere() -> None:
    definition = sweep(options={"header": ["Authorization: Bearer secret"]})
    (cell, *_) = cells_of(definition)
    assert "secret" not in f"{definition.as_json}{cell.fixed}{cell.title}"
    assert "--header=Authorization: Bearer secret" in cell.words(0)


def engine_of(cell: CellPlan) -> CellEngine:
    return CellEngine(cell.axes["target"], True, cell.axes["target"])


def order(definition: Definition) -> list[Stretch]:
    return stretches(definition, cells_of(definition), engine_of)


def shape(definition: Definition) -> list[tuple[str, list[int]]]:
    return [(each.engine.label, [step.repeat for step in each.steps]) for each in order(definition)]


def test_each_repeat_is_a_pass_with_one_start_of_each_engine() -> None:
    passes = shape(sweep(repeats=3))
    assert [repeats for _, repeats in passes] == [[n, n] for n in (1, 1, 2, 2, 3, 3)]
    assert all({passes[n][0], passes[n + 1][0]} == {"a", "b"} for n in (0, 2, 4))


def test_one_start_of_each_engine_for_all_repeats() -> None:
    passes = shape(sweep(repeats=3, engine_starts="once"))
    assert sorted(passes) == [("a", [1, 1, 2, 2, 3, 3]), ("b", [1, 1, 2, 2, 3, 3])]


def test_everything_is_made_once_with_the_seed_of_its_repeat() -> None:
    for starts in ("per-repeat", "once"):
        definition = sweep(repeats=3, engine_starts=starts, options={"seed": 40})
        steps = [step for stretch in order(definition) for step in stretch.steps]
        assert Counter(step.name for step in steps).most_common(1)[0][1] == 1
        assert len(steps) == 12
        assert all(step.seed == 39 + step.repeat for step in steps)


def test_the_order_is_that_of_the_seed() -> None:
    def names(seed: int) -> list[str]:
        axes = {"target": ["a", "b", "c"], "zipf": [0, 1, 2, 3]}
        return [s.name for each in order(sweep(axes=axes, seed=seed)) for s in each.steps]

    assert names(1) == names(1)
    assert len({tuple(names(seed)) for seed in range(5)}) == 5
    assert sorted(names(1)) == sorted(names(2))
