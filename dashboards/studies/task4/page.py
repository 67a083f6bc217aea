"""The page of the study."""

from collections.abc import Iterator
from pathlib import Path

from dashboards.studies.answer import StudyAnswer, section
from dashboards.studies.page import Provenance, beginning, publish
from dashboards.studies.study import Study
from dashboards.studies.task4.answers import answers
from dashboards.studies.task4.findings import Findings

STUDY = Study(
    "task4",
    "Task 4: what KV caches know",
    "Can one tell from the KV tensors that LMCache stored, and from nothing else, which document a"
    " request was about? Documents are cut into passages that share no text: one is the context,"
    " the others stand for long questions, each of whole LMCache chunks, so that all their KV is"
    " stored. Natural short questions fill no chunk; theirs comes from a forward pass of the same"
    " model. A request becomes one vector: its keys and values, averaged over tokens, each column"
    " standardised, reduced by PCA to 90 % of the variance.",
    (),
)


def write_page(findings: Findings, measured: Provenance, folder: Path) -> Path:
    """Write page, pictures and summary into a folder that is there; returns the page."""
    found = answers(findings)
    return publish(STUDY, measured, found, _page(findings, measured, found), folder)


def _page(
    findings: Findings, measured: Provenance, found: tuple[tuple[str, StudyAnswer], ...]
) -> Iterator[str]:
    yield beginning(STUDY, measured)
    yield (
        f"The command makes every figure below. Intervals hold 95 % of {findings.seeds} seeds, of"
        " which each leaves out a fifth of the requests and starts the clustering anew; they know"
        " nothing of other documents or another recording. Arms are called different where their"
        " intervals do not meet. `mixed labels` is the ARI of the same groups against the labels in"
        " random order. `silhouette` is of the true labels. `labels right` is how often a request"
        " is nearest to the centroid of its own label's other requests, or how often retrieval"
        " names the document. Retrieval knows the documents without the passages that stand for"
        " long questions, and all of them for the short ones; its ranking was chosen on a part of"
        " the demo corpus's questions. The encoder reads the first 256 of its own tokens. All"
        " sentences are made from the figures by rules."
    )
    if findings.notes:
        yield "How the KV was read:"
        yield "\n".join(f"- {note}" for note in findings.notes)
    yield "## In short"
    yield "\n".join(f"- [{each.question}](#{key}) {each.short}" for key, each in found)
    for key, answer in found:
        yield from section(key, answer, STUDY.name)
