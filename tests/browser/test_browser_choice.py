"""Which browser is driven, and that CI never skips for want of one."""

from pathlib import Path

import pytest
from chromium import find_browser


@pytest.fixture
def empty(tmp_path: Path) -> dict[str, str]:
    return {"PATH": str(tmp_path)}


def install(folder: Path, name: str) -> str:
    browser = folder / name
    browser.touch(mode=0o755)
    return str(browser)


def test_an_installed_browser_is_found_by_name(empty: dict[str, str], tmp_path: Path) -> None:
    path = install(tmp_path, "chromium-browser")
    assert find_browser(empty) == path


def test_the_named_browser_is_taken(empty: dict[str, str], tmp_path: Path) -> None:
    install(tmp_path, "chromium")
    own = install(tmp_path, "own")
    assert find_browser({**empty, "KVSWARM_BROWSER": own}) == own


def test_a_named_browser_that_is_not_there_is_not_replaced(
    empty: dict[str, str], tmp_path: Path
) -> None:
    install(tmp_path, "chromium")
    with pytest.raises(pytest.skip.Exception, match="no browser /none/such"):
        find_browser({**empty, "KVSWARM_BROWSER": "/none/such"})


def test_without_a_browser_ci_fails_and_others_are_told(empty: dict[str, str]) -> None:
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        find_browser(empty)
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        find_browser({**empty, "CI": "true"})
