"""What to type for a library that is missing, where kvswarm is on no index."""

import json
from pathlib import Path

import pytest

from rag_store import extras
from rag_store.extras import install_command


class Installed:
    requires = ("rich>=13", 'numpy>=2; extra == "compare"', 'scipy>=1.15,<2; extra == "compare"')

    def __init__(self, url: str | None) -> None:
        self.url = url

    def read_text(self, name: str) -> str | None:
        return None if self.url is None else json.dumps({"url": self.url, "dir_info": {}})


@pytest.mark.parametrize("url", [None, "file:///nowhere/kvswarm.whl", "https://host/kvswarm.whl"])
def test_packages_are_named_where_the_source_is_gone(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "distributions", lambda name: [Installed(url)])
    assert install_command("compare") == "pip install 'numpy>=2' 'scipy<2,>=1.15'"


def test_the_clone_or_wheel_is_named_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clone holds what a build left in it, which does not know where it lies.
    both = [Installed(None), Installed(tmp_path.as_uri())]
    monkeypatch.setattr(extras, "distributions", lambda name: both)
    assert install_command("rag,kv") == f"pip install '{tmp_path}[rag,kv]'"


def test_a_clone_that_is_not_installed_says_where_to_type_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "distributions", lambda name: [])
    assert install_command("kv") == "pip install '.[kv]' in a clone"
