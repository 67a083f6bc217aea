"""Files are whole or not there; folders of killed processes are swept by the next start."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.scratch import OWNER, scratch_folder, write_whole
from loadgen.sweep.table import write_table

OWNING = """
import sys
from pathlib import Path
from loadgen.scratch import scratch_folder

beside = Path(sys.argv[1]) / "kvswarm-beside"
with scratch_folder(beside) as path:
    beside.mkdir()
    (path / "left").write_text("behind")
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_it_goes_with_the_block() -> None:
    with scratch_folder() as path:
        assert [each.name for each in path.iterdir()] == [OWNER]
    assert not path.exists()


def test_that_of_a_killed_process_is_swept_and_that_of_a_living_one_is_not(place: Path) -> None:
    (place / "kvswarm-of-somebody").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", OWNING, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        path = Path(owner.stdout.readline().strip())
        with scratch_folder():
            assert (path / "left").is_file()
        owner.send_signal(signal.SIGKILL)
    with scratch_folder() as other:
        assert {each.name for each in place.iterdir()} == {other.name, "kvswarm-of-somebody"}


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_is_written_whole_or_stays_as_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "file"
    write_whole(file, b"first")
    file.chmod(0o640)
    write_whole(file, b"second")
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"second", 0o640)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"third")
    assert [each.read_bytes() for each in place.iterdir()] == [b"second"]


def test_a_table_for_which_there_is_no_room_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_table(place)
    assert list(place.iterdir()) == []
