"""The versions of vLLM that are tested; the rest of the guard is tested on vLLM's scheduler."""

import pytest

from scheduler_plugin import guard


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1", "v0.32.5", "0.32.1.dev3+g1234.cpu"])
def test_a_tested_version(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda: version)
    assert guard.untested_version() is None


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "0.3.2", "1.32.0", "0.320.0"])
def test_a_version_not_tested(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda: version)
    said = f"vLLM {version} is not among the tested versions, >=0.32,<0.33"
    assert said in str(guard.untested_version())


def test_a_version_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "installed_version", lambda: None)
    assert "unknown version" in str(guard.untested_version())


def test_a_check_that_breaks_is_a_misfit(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(_: object) -> None:
        raise AttributeError("'KVCacheManager' object has no attribute 'usage'")

    monkeypatch.setattr(guard, "CHECKS", (look,))
    misfit = guard.misfit_of(None)
    assert misfit is not None
    assert "AttributeError: 'KVCacheManager' object has no attribute 'usage'" in misfit
