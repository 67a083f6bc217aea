"""Colours of lines, marks and boxes are seen on light and dark pages, and told from each other."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dashboards.figures import style
from dashboards.live_tab import pages
from dashboards.report import page

Triple = npt.NDArray[np.float64]

COLOURS = sorted(
    {
        *style.CONTEXT_COLOURS,
        *style.SERIES_COLOURS,
        *style.OUTCOME_COLOURS.values(),
        style.NO_CONTEXT_COLOUR,
        style.GRID,
    }
)
LEAST_CONTRAST = 3.0
"""WCAG 2.2, 1.4.11, of graphics."""
LOCUST_GROUNDS = {"#ffffff", "#121212"}


def grounds() -> set[str]:
    """Behind the report's figures and in Locust's page, in both themes."""
    css = Path(page.__file__).with_name("page.css").read_text(encoding="utf-8")
    found = re.findall(r"^ +--(?:ground|card): (#[0-9a-f]{6});$", css, re.M)
    assert len(found) == 4
    return {*found, *LOCUST_GROUNDS}


def linear(colour: str) -> Triple:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    dark, light = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("ground", sorted(grounds()))
def test_lines_and_marks_stand_out_from_the_page_in_both_themes(ground: str) -> None:
    weak = {each: round(contrast(each, ground), 2) for each in COLOURS}
    assert {each: by for each, by in weak.items() if by < LEAST_CONTRAST} == {}


def test_the_live_tab_has_no_colours_besides() -> None:
    files = (Path(pages.__file__).parent / "static").glob("*.[jc]s*")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert set(re.findall(r"#[0-9a-f]{6}\b", text)) - set(COLOURS) == set()


PROTAN = ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052))
DEUTAN = ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969))
"""Linear RGB as seen without one kind of cones (Machado and others 2009)."""
TO_CONES = np.array(((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300)))
TO_OKLAB = np.array(
    ((0.2105, 0.7936, -0.0041), (1.9780, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087))
)


@pytest.mark.parametrize(
    ("sight", "least"),
    [(np.eye(3), 0.10), (PROTAN, 0.06), (DEUTAN, 0.06)],
    ids=("all", "protan", "deutan"),
)
def test_the_first_eight_contexts_differ_also_for_the_colour_blind(
    sight: Triple, least: float
) -> None:
    def seen(colour: str) -> Triple:
        light = np.clip(np.asarray(sight) @ linear(colour), 0, 1)
        return np.asarray(TO_OKLAB @ np.cbrt(TO_CONES @ light))

    first = map(seen, style.CONTEXT_COLOURS[:8])
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(first, 2)) > least
