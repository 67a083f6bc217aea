"""Task 4: plain answers about what stored KV knows, made by rules, and their page."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dashboards.studies.answer import StudyAnswer, StudyPicture, in_short, section
from dashboards.studies.page import Provenance, page_head, publish
from dashboards.studies.study import Study
from dashboards.studies.task4.findings import (
    Findings,
    arm_table,
    layer_table,
    taken,
    variant_table,
    within,
)
from dashboards.studies.task4.pictures import heat_map, layer_profile, neighbours, scatter
from dashboards.studies.task4.serving import serving_sentences, serving_tables
from dashboards.studies.wording import percent
from kv_reading.arms import (
    CONTEXT,
    ENCODER,
    MAIN,
    OTHER,
    OWN,
    RAG,
    SHORT,
    SWAPPED,
    WHOLE,
    WORDS,
    ArmScore,
    LayerScore,
)
from kv_reading.scores import Score

WEAK, STRONG = 0.3, 0.7
"""Of an ARI: below is weak, above is most of the way."""


def answers(findings: Findings) -> tuple[tuple[str, StudyAnswer], ...]:
    """Each with the key of its section. The first sentence says of what model it is."""
    weights = "random weights" if findings.facts.random_weights else "a trained model"
    keys = ("cluster", "retrieval", "layers", "methods", "use")
    makers = (_cluster, _retrieval, _layers, _methods, _use)
    found = zip(keys, makers, strict=True)
    return tuple((key, _with(weights, make(findings))) for key, make in found)


def _with(weights: str, answer: StudyAnswer) -> StudyAnswer:
    first = (f"With {weights}, {said[0].lower()}{said[1:]}" for said in answer.sentences[:1])
    return replace(answer, sentences=(*first, *answer.sentences[1:]))


def strength(score: Score) -> str:
    """What the ARI of an arm says, set against mixed labels."""
    if score.ari.low <= score.permuted.high:
        return "no better than chance"
    if score.ari.mean < WEAK:
        return "weakly"
    return "mostly" if score.ari.mean >= STRONG else "in part"


def _cluster(findings: Findings) -> StudyAnswer:
    features = findings.features
    pairs = [("question alone", MAIN), ("with its context", WHOLE)]
    shown = [(title, features[arm]) for title, arm in pairs if arm in features]
    return StudyAnswer(
        "Do requests of one document cluster by their KV alone?",
        tuple(_cluster_sentences(findings)),
        (arm_table(findings),),
        (
            StudyPicture(
                "scatter",
                scatter(shown),
                "Requests on the first two principal components of their KV, coloured by document",
            ),
            StudyPicture(
                "neighbours",
                neighbours(shown),
                "The same by t-SNE, for the eye only: distances between groups mean nothing",
            ),
            StudyPicture(
                "similarity",
                heat_map(shown),
                "Cosine of the KV of each request with that of each other, by document",
            ),
        ),
    )


def _cluster_sentences(findings: Findings) -> Iterator[str]:
    main = findings.row(MAIN)
    assert main is not None  # without it there are no findings
    yield (
        f"By the KV of the question alone: {strength(main.score)}; adjusted Rand index"
        f" (ARI) {within(main.score.ari)}, with mixed labels {within(main.score.permuted)}"
        f" ({main.score.requests} requests about {main.score.labels} documents, KV from"
        f" {main.source})."
    )
    if whole := findings.row(WHOLE):
        yield (
            f"With the context's tokens in, the ARI is {within(whole.score.ari)}. That says"
            " nothing: requests of one context hold the same KV for it, bit by bit."
        )
    if own := findings.row(OWN):
        yield (
            f"The question's tokens alone, computed under the document's context:"
            f" {within(own.score.ari)}. Attention has mixed the shared context into them, so this"
            " is not the question's own either."
        )
    if other := findings.row(OTHER):
        yield (
            "Under another passage of the same document, one that no other request shares:"
            f" {within(other.score.ari)}."
        )
    yield from _swap(findings)
    if findings.facts.random_weights:
        yield (
            "**The weights are random.** Such KV holds which tokens stood there, mixed at random;"
            " it cannot show what a trained model's KV knows of a topic, for better or worse. With"
            " `--model` and the folder of a trained model the same command asks that one."
        )


def _swap(findings: Findings) -> Iterator[str]:
    topic, context = findings.row(SWAPPED), findings.row(SWAPPED, CONTEXT)
    if topic is None or context is None:
        return
    ours, theirs = topic.score.ari, context.score.ari
    if ours.low > theirs.high:
        verdict = "the question counts for more than the context"
    elif theirs.low > ours.high:
        verdict = "the context counts for more than the question"
    else:
        verdict = "neither clearly counts for more"
    yield (
        f"Swapped, each question under another document's context: groups match the question's"
        f" document by {within(ours)} and the context's by {within(theirs)}; {verdict}."
    )


def _retrieval(findings: Findings) -> StudyAnswer:
    return StudyAnswer(
        "How does that compare with RAG and with the words alone?",
        (*_compared(findings, MAIN, "Long questions"), *_compared(findings, SHORT, "Short ones")),
    )


def _compared(findings: Findings, arm: str, name: str) -> Iterator[str]:
    ours = findings.row(arm)
    rivals = [findings.row(f"{rival}:{arm}") for rival in (WORDS, ENCODER, RAG)]
    there = [row for row in rivals if row is not None]
    if ours is None or not there:
        return
    told = ", ".join(f"{row.source} {within(row.score.ari)}" for row in there)
    better = [row.source for row in there if row.score.ari.low > ours.score.ari.high]
    worse = [row.source for row in there if row.score.ari.high < ours.score.ari.low]
    verdict = (
        f"KV is worse than {', '.join(better)}" if better else "nothing is clearly better than KV"
    )
    verdict += f", and better than {', '.join(worse)}" if worse else ""
    yield (
        f"{name} ({ours.source}), by adjusted Rand index: KV {within(ours.score.ari)}; {told}."
        f" {verdict}."
    )
    yield (
        f"{name} by the share of right labels: KV's nearest centroid {_right(ours)},"
        f" {', '.join(f'{row.source} {_right(row)}' for row in there)}."
    )


def _layers(findings: Findings) -> StudyAnswer:
    alone = [each for each in findings.layers if each.arm == MAIN]
    best = max(alone, key=lambda each: each.score.ari.mean)
    worst = min(alone, key=lambda each: each.score.ari.mean)
    sentences = (
        f"The adjusted Rand index of the question alone goes from {within(worst.score.ari)}"
        f" ({worst.part} of layer {worst.layer}) to {within(best.score.ari)} ({best.part} of layer"
        f" {best.layer}).",
        *_by_centroid(alone),
        "The best of so many is chosen on the same requests and flatters itself; the picture is to"
        " be read as a whole.",
        "Layer 0 has seen no other token: its values are the words' own, so what it scores needs no"
        " model. Its keys are turned by their position, which all questions of an arm have alike.",
    )
    picture = StudyPicture(
        "layers", layer_profile(findings.layers), "ARI of each layer's keys and values"
    )
    return StudyAnswer("Which layers know it?", sentences, (layer_table(findings),), (picture,))


def _by_centroid(layers: Sequence[LayerScore]) -> Iterator[str]:
    """The fewest and the most right labels that a layer gives by its nearest centroid."""
    known = [(each.score.centroid, each) for each in layers if each.score.centroid is not None]
    if known:
        told = [
            f"{percent(share)} ({each.part} of layer {each.layer})"
            for share, each in (pick(known, key=lambda each: each[0]) for pick in (min, max))
        ]
        yield f"By the nearest centroid the share of right labels goes from {' to '.join(told)}."


def _methods(findings: Findings) -> StudyAnswer:
    best = max(findings.variants, key=lambda each: each.score.ari.mean)
    sentences = (
        f"Of {len(findings.variants)} ways on the question alone, {best.method} on the"
        f" {best.choice.pool} of {taken(best.choice)} ({best.reduction}) reaches the highest"
        f" adjusted Rand index: {within(best.score.ari)}; chosen on the same requests, so not a"
        " fair figure.",
        "HDBSCAN and DBSCAN are not told how many documents there are; what they leave out counts"
        " as one group.",
    )
    return StudyAnswer(
        "Does it depend on the clustering, or on what is taken?",
        sentences,
        (variant_table(findings),),
    )


def _use(findings: Findings) -> StudyAnswer:
    cells = findings.serving
    sentences = [*_use_sentences(findings)]
    if len(cells):
        sentences += serving_sentences(cells, findings.facts.random_weights)
    tables = serving_tables(cells) if len(cells) else ()
    return StudyAnswer("How could it serve scheduling or prefetching?", tuple(sentences), tables)


def _use_sentences(findings: Findings) -> Iterator[str]:
    arm = SHORT if findings.row(SHORT) is not None else MAIN
    ours, rag = findings.row(arm), findings.row(f"{RAG}:{arm}")
    if ours is not None and ours.right is not None and rag is not None and rag.right is not None:
        is_more = "KV" if ours.right > rag.right else "retrieval"
        better = (
            "both are as often right"
            if ours.right == rag.right
            else f"{is_more} is right more often"
        )
        yield (
            f"As a label for order or prefetching, {better} here: the nearest"
            f" KV centroid {_right(ours)}, RAG {_right(rag)} of {ours.score.requests} questions."
        )
    yield (
        "A question's KV is there only after its forward pass, when the order of prefill is"
        " decided; a label from KV costs that pass before it can serve."
    )
    yield (
        "Where requests share a prefix, the digests of their token ids find it exactly and before"
        " any KV is computed; similarity of KV adds nothing there."
    )
    yield (
        "What is left for KV is to group what is already stored: which chunks belong together, to"
        " be fetched or evicted together. The figures above say how far that would be right."
    )


def _right(row: ArmScore) -> str:
    return "not known" if row.right is None else percent(row.right)


STUDY = Study(
    "task4",
    "Task 4 with random weights: what KV caches know",
    "Can one tell from the KV tensors that LMCache stored, and from nothing else, which document a"
    " request was about? Documents are cut into passages that share no text: one is the context,"
    " the others stand for long questions, each of whole LMCache chunks, so that all their KV is"
    " stored. Natural short questions fill no chunk; theirs comes from a forward pass of the same"
    " model. A request becomes one vector: its keys and values, averaged over tokens, each column"
    " standardised, reduced by PCA to 90 % of the variance.",
    (),
)
TRAINED = replace(
    STUDY, name="task4-trained", title="Task 4 with a trained model: what KV caches know"
)


def write_page(findings: Findings, measured: Provenance, folder: Path) -> Path:
    """Write page, pictures and summary into a folder that is there; returns the page, which has
    another name where the weights of the model are trained."""
    study = STUDY if findings.facts.random_weights else TRAINED
    found = answers(findings)
    return publish(study, measured, found, _page(study, findings, measured, found), folder)


def _page(
    study: Study,
    findings: Findings,
    measured: Provenance,
    found: tuple[tuple[str, StudyAnswer], ...],
) -> Iterator[str]:
    yield page_head(study.title, study.introduction, measured, needs="")
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
    yield in_short(each.linked(key) for key, each in found)
    for key, answer in found:
        yield from section(key, answer, study.name)
