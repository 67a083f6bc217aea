"""What is checked of labels and of the RAG service before any load is sent."""

from loadgen.client.host import base_url
from loadgen.client.label_probe import KvFacts, RagFacts, probe_kv, probe_rag
from loadgen.errors import HostError, UsageError
from loadgen.swarm.engine import Engine
from loadgen.swarm.options.flags import SERVICE_LABELS
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.workload.corpus import GENERAL_QUESTION, Corpus


def check_arm(options: SwarmOptions, corpus: Corpus, batched: bool) -> None:
    """Find what is wrong with `--labels` and its company without any host. Raises UsageError."""
    contexts, documents = options.workload.contexts, len(corpus.documents)
    if options.rag_wrong and options.labels != "rag":
        raise UsageError("--rag-wrong puts wrong contexts among retrieved ones: give --labels rag")
    if contexts < 2 and (options.rag_wrong or options.labels == "shuffled"):
        raise UsageError(
            f"--contexts {contexts} leaves no other context to be wrong: give 2 or more"
        )
    if options.labels not in SERVICE_LABELS:
        return
    labels = f"--labels {options.labels}"
    if batched:
        raise UsageError(
            f"{labels} is for single requests: run the locustfile rag, or give other --labels"
        )
    if contexts > documents:
        raise UsageError(
            f"--contexts {contexts} is more than the corpus's {documents} documents, and "
            f"documents are what {labels} finds: give --contexts {documents} or a larger corpus"
        )
    if options.rag_url is not None:
        check_url("--rag-url", options.rag_url)


def ready_rag(options: SwarmOptions, corpus: Corpus) -> RagFacts | None:
    """The RAG service that a swarm is to ask, ready and with all texts of the corpus.

    None where nothing is retrieved. Blocks the calling greenlet only. Raises UsageError.
    """
    if options.labels != "rag":
        return None
    if options.rag_url is None:
        raise UsageError(
            "--labels rag has no service to ask: start `kvswarm rag serve` and give --rag-url URL"
        )
    asked = probe_rag(options.rag_url, corpus.documents, corpus.source)
    try:
        return Engine.of_process().run(asked)
    except HostError as error:
        raise HostError(f"RAG service: {error}") from None


def ready_kv(options: SwarmOptions, corpus: Corpus, model: str) -> KvFacts | None:
    """The service of KV labels that a swarm is to ask, ready and of the host's `model`.

    None for other labels. Blocks the calling greenlet only. Raises UsageError.
    """
    if options.labels != "kv":
        return None
    if options.rag_url is None:
        raise UsageError(
            "--labels kv has no service to ask: start `kvswarm kv serve` and give --rag-url URL"
        )
    asked = [document.doc_id for document in corpus.documents[: options.workload.contexts]]
    try:
        return Engine.of_process().run(probe_kv(options.rag_url, model, asked))
    except HostError as error:
        raise HostError(f"KV service: {error}") from None


def kv_notes(kv: KvFacts | None) -> tuple[str, ...]:
    """What labels by KV cannot find, to be said at the start."""
    if kv is None or not kv.unknown:
        return ()
    return (
        f"the KV service knows no earlier question about {kv.unknown} of the contexts: they cannot"
        " be found",
    )


def rag_notes(rag: RagFacts | None, options: SwarmOptions, corpus: Corpus) -> tuple[str, ...]:
    """What makes retrieval harder than it looks, to be said at the start."""
    if rag is None:
        unused = options.rag_url is not None and options.labels not in SERVICE_LABELS
        return (f"--rag-url is not used with --labels {options.labels}",) if unused else ()
    notes = []
    if rag.strangers:
        notes.append(
            f"the RAG service has {rag.strangers} documents that the corpus has not:"
            " where it finds one, its own text is sent"
        )
    asked = corpus.documents[: options.workload.contexts]
    general = sum(corpus.questions[each.doc_id][0].text == GENERAL_QUESTION for each in asked)
    if general:
        notes.append(
            f"{general} of {len(asked)} contexts have no question of their own: what is asked"
            " of them instead names no document, and cannot be found"
        )
    return tuple(notes)


def check_url(option: str, url: str) -> None:
    """Raises HostError, as for an address with credentials."""
    try:
        base_url(url)
    except HostError as error:
        raise HostError(f"{option}: {error}") from None
