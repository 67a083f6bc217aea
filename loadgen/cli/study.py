"""`kvswarm study`: questions about caches and order, measured and answered on a page."""

import argparse
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli import kv_study
from loadgen.cli.kv_study import KV_STUDY, SIGNALLED, STUDY_JSON
from loadgen.cli.network import network_study
from loadgen.cli.policies import policies_study
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.terminal import say
from loadgen.runs.directory import check_directory, require_writable
from loadgen.sweep.table import CELLS_CSV

if TYPE_CHECKING:
    from dashboards.studies.study import StudyPlan

CORPORA = "corpora"
STUDIES = ("task1", "task2", "task3", "tiers", "engines", "fleet", "fp8")
REPORT = "report"
MEASURED_BY = {"policies": policies_study, "network": network_study}
"""Studies with measuring and options of their own."""


def study_command(arguments: list[str]) -> int:
    """Measure what is missing of a study and write its page, or write the page alone.

    The exit code is that of the sweep. Raises UsageError.
    """
    if arguments[:1] == [KV_STUDY]:
        return kv_study.kv_study_command(arguments[1:])
    if (own := MEASURED_BY.get(arguments[0] if arguments else "")) is not None:
        return own(arguments[1:])
    parsed = _parser().parse_args(arguments)
    with needs("report,compare"):
        return _report(parsed) if parsed.study == REPORT else _measure(parsed)


def _measure(parsed: argparse.Namespace) -> int:
    from dashboards.studies.corpora import write_corpora
    from dashboards.studies.study import estimate
    from loadgen.launch.sweep_run import make_sweep

    if parsed.directory is not None:
        raise UsageError(f"{parsed.directory} is a word too many: name the directory with --out")
    import_module("dashboards.studies.page")  # must not be missing when all is measured
    plan = _plan(parsed.study, parsed.quick)
    out: Path = parsed.out or Path("runs") / f"study-{plan.name}"
    require_writable(parsed.page or out, "--out" if parsed.page is None else "--page")
    _keep(out, plan)
    definition = plan.merged(out / CORPORA)
    if any("corpus" in cell for cell in definition.cells):
        write_corpora(out / CORPORA)
    say(f"study {plan.name}: {estimate(plan)}")
    code = make_sweep(definition, out)
    if code >= SIGNALLED:
        say(f"continue the study with `{_command(plan, out, str(out))}`")
        return code
    _publish(plan, out, parsed.page)
    return code


def _report(parsed: argparse.Namespace) -> int:
    from loadgen.runs.json_file import read_object

    out: Path | None = parsed.directory
    if out is None or parsed.out or parsed.quick:
        raise UsageError("name the directory of a study alone: kvswarm study report DIR")
    kept = read_object(out / STUDY_JSON)
    if kept.get("study") == KV_STUDY and isinstance(kept.get("arguments"), list):
        page = [] if parsed.page is None else ["--page", str(parsed.page)]
        return study_command([KV_STUDY, *kept["arguments"], "--out", str(out), *page])
    if kept.get("study") not in STUDIES:
        raise UsageError(f"{out} holds no study: name the directory that `kvswarm study` made")
    _publish(_plan(kept["study"], bool(kept.get("quick"))), out, parsed.page)
    return 0


def _plan(name: str, quick: bool) -> "StudyPlan":
    from dashboards.studies.catalog import STUDIES as STUDIES_BY_NAME
    from dashboards.studies.study import read_plan

    return read_plan(STUDIES_BY_NAME[name], quick)


def _keep(out: Path, plan: "StudyPlan") -> None:
    """Note which study it is; UsageError where the directory holds something else."""
    from loadgen.runs.json_file import read_object, write_json
    from loadgen.sweep.folder import SWEEP_JSON

    check_directory(out, STUDY_JSON, SWEEP_JSON)
    kept, ours = read_object(out / STUDY_JSON), {"study": plan.study.name, "quick": plan.quick}
    if kept != ours and (kept or (out / SWEEP_JSON).exists()):
        raise UsageError(f"{out} holds something else than study {plan.name}: give another --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / STUDY_JSON, ours)


def _publish(plan: "StudyPlan", out: Path, page: Path | None) -> None:
    """Write the page where it was asked for, else beside the runs, and say where it is."""
    from dashboards.studies.catalog import IN_OVERVIEW
    from dashboards.studies.corpora import without_places
    from dashboards.studies.overview import write_overview
    from dashboards.studies.page import measured_by, write_page
    from loadgen.sweep.table import read_cells

    if not (out / CELLS_CSV).is_file():
        raise UsageError(f"{out} has no {CELLS_CSV}: nothing of study {plan.name} was measured")
    folder = page or out
    require_writable(folder, "DIR" if page is None else "--page")
    folder.mkdir(parents=True, exist_ok=True)
    measured = read_cells(out)
    command = _command(plan, out)
    path = write_page(plan, plan.cells(measured), measured_by(command, measured), folder)
    corpora = [each for cell in measured if (each := cell.axes.get("corpus"))]
    for source, file in (
        (path, path),
        (out / CELLS_CSV, folder / f"{plan.study.name}-{CELLS_CSV}"),
    ):
        text = source.read_text(encoding="utf-8")
        for place in (out.resolve(), out):  # it may be asked for from elsewhere than it was run
            text = text.replace(f"{place}/", "")
        file.write_text(without_places(text, corpora), encoding="utf-8")
    if page is not None:
        write_overview(folder, IN_OVERVIEW)
    print(path)


def _command(plan: "StudyPlan", out: Path, named: str = "") -> str:
    """What makes the study; on a page the directory goes by its last name alone."""
    words = ["kvswarm", "study", plan.study.name, *(["--quick"] if plan.quick else [])]
    default = Path("runs") / f"study-{plan.name}"
    return shlex.join(words if out == default else [*words, "--out", named or out.name])


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm study",
        usage="kvswarm study task1|task2|task3|task4|tiers|engines|fleet|fp8|policies|network"
        " [--quick] [--out DIR] [-o FOLDER]\n"
        "       kvswarm study report DIR [-o FOLDER]",
        description="Measure a study and write a page with its answers. The same command continues"
        " one that was stopped; `report` writes the page anew from what was measured.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("study", choices=(*STUDIES, KV_STUDY, *MEASURED_BY, REPORT), help="which study")
    add("directory", nargs="?", type=Path, metavar="DIR", help="of a study, for report")
    add("--quick", action="store_true", help="fewer cells, requests and repeats: about ten minutes")
    add("--out", type=Path, metavar="DIR", help="the runs (default: runs/study-NAME)")
    add("-o", "--page", type=Path, metavar="FOLDER", help="where the page goes, with an overview")
    return parser
