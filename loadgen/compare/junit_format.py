"""A comparison as JUnit XML: a test case for each limit, or for each metric without a gate."""

from xml.etree import ElementTree

from loadgen.compare import wording
from loadgen.compare.comparison import Comparison
from loadgen.compare.judgement import Judgement
from loadgen.compare.row import Row

SUITE = "kvswarm compare"


def to_junit(comparison: Comparison) -> str:
    """A broken limit is a failure, an undecided one an error; metrics alone never fail."""
    outcomes = [judgement.outcome for judgement in comparison.judgements]
    cases = len(outcomes) or len(comparison.rows)
    suite = ElementTree.Element(
        "testsuite",
        name=SUITE,
        tests=str(cases),
        failures=str(outcomes.count("broken")),
        errors=str(outcomes.count("undecided")),
    )
    for judgement in comparison.judgements:
        _judgement(suite, judgement)
    if not comparison.judgements:
        for row in comparison.rows:
            _row(suite, row)
    ElementTree.SubElement(suite, "system-out").text = _sides(comparison)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _judgement(suite: ElementTree.Element, judgement: Judgement) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=SUITE, name=judgement.limit.text)
    found = wording.finding(judgement)
    if judgement.outcome == "passed":
        ElementTree.SubElement(case, "system-out").text = found
    else:
        tag = "failure" if judgement.outcome == "broken" else "error"
        ElementTree.SubElement(case, tag, type=judgement.outcome, message=found)


def _row(suite: ElementTree.Element, row: Row) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=SUITE, name=row.statistic.name)
    text = f"{row.verdict}: {wording.change(row)} ({wording.bounds(row)})"
    ElementTree.SubElement(case, "system-out").text = text


def _sides(comparison: Comparison) -> str:
    lines = [("base", *comparison.base), ("new", *comparison.new), ("note", *comparison.remarks)]
    return "\n".join(f"{line[0]}: {wording.plain(each)}" for line in lines for each in line[1:])
