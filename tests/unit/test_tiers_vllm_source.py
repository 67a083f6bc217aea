import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kv_tiers.vllm_source import KNOWN, changes, installed, known

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="there is nothing to check")
REGION = "v1/kv_offload/cpu/shared_offload_region.py"
MANAGER, FILES = "v1/kv_offload/tiering/manager.py", "v1/kv_offload/tiering/fs"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What the specs and the worker lean on, to be changed."""
    for file in KNOWN:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(installed() / file, tmp_path / file)
    return tmp_path


def edit(copy: Path, file: str, old: str, new: str) -> list[str]:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    return changes(copy)


def test_the_installed_vllm_is_the_one_that_specs_and_worker_were_written_for() -> None:
    assert changes() == []


@pytest.mark.parametrize(
    ("file", "old", "new", "named"),
    [
        ("v1/kv_offload/base.py", "job_ids: set[int]", "job_ids: list[int]", "OffloadingWorker"),
        ("v1/kv_offload/base.py", "class TransferResult:", "class Moved:", "TransferResult is"),
        (REGION, "self._worker_offset = rank * cpu_page_size", "self._worker_offset = 0", "__init"),
        (MANAGER, "failed_keys = ()", "failed_keys = []", "_complete_promotion"),
        (f"{FILES}/io.py", "readv(fd, [view_slice])", "readv(fd, [])", "_load_block"),
        ("v1/worker/gpu/kv_connector.py", "self._pending_load_kwargs is not None", "1", "Active"),
    ],
)
def test_a_change_is_told_by_file_and_name(
    copy: Path, file: str, old: str, new: str, named: str
) -> None:
    (said,) = edit(copy, file, old, new)
    assert file in said
    assert named in said


def test_comments_and_docstrings_are_no_change(copy: Path) -> None:
    docstring = '"""Async GPU -> offloaded medium."""'
    assert edit(copy, "v1/kv_offload/base.py", docstring, '"""Something else."""  # said') == []


def test_a_missing_file_is_told_for_all_that_was_in_it(copy: Path) -> None:
    (copy / REGION).unlink()
    assert len(changes(copy)) == len(KNOWN[REGION])


def test_a_table_is_made_of_all_names_or_not_at_all(copy: Path) -> None:
    assert known(copy) == KNOWN
    edit(copy, "v1/kv_offload/base.py", "class TransferResult:", "class Moved:")
    (copy / REGION).unlink()
    with pytest.raises(LookupError, match="These are gone") as told:
        known(copy)
    gone = str(told.value).splitlines()[:-1]
    assert len(gone) == 1 + len(KNOWN[REGION])
    assert "vllm/v1/kv_offload/base.py: TransferResult" in gone


def test_the_check_needs_neither_an_engine_nor_vllm_itself() -> None:
    script = "import sys, kv_tiers.vllm_source as s; s.changes(); print('vllm' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["False"]
