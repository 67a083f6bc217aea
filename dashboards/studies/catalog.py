"""The studies there are."""

from dashboards.studies.engines import LADDER_QUESTIONS
from dashboards.studies.fleet import QUESTIONS as FLEET_QUESTIONS
from dashboards.studies.halved import HALVED_QUESTIONS
from dashboards.studies.study import Study, StudyQuestion
from dashboards.studies.task1.caches import enough
from dashboards.studies.task1.diversity import diversity, old_requests
from dashboards.studies.task1.length import by_length, with_and_without
from dashboards.studies.task2 import Gain, why
from dashboards.studies.task3 import documents, order_by_label, relevance, retrieval
from dashboards.studies.tiers import QUESTIONS

TASK1 = Study(
    "task1",
    "Task 1: long and repeated prompts, and what a cache is worth",
    "Requests of a context and a question, sent one after the other by one user and by several at"
    " once, to a vLLM that kvswarm starts. What changes from cell to cell is how long and how"
    " different the prompts are, how often an old one returns, and how large the engine's cache is"
    " (`--kv-tokens`). What memory and files behind it add is `kvswarm study tiers`.",
    (
        StudyQuestion("length", ("length",), by_length),
        StudyQuestion("reuse", ("length",), with_and_without),
        StudyQuestion("repeat", ("repeat",), old_requests),
        StudyQuestion("diversity", ("diversity",), diversity),
        StudyQuestion("enough", ("enough",), enough),
    ),
)

TASK2 = Study(
    "task2",
    "Task 2: the order of contexts",
    "The same requests on vLLM as it is, first come, first served, and with kvswarm's scheduler"
    " plugin, which serves them context by context. They are sent as shuffled batches, all requests"
    " of one at once, or by single users.",
    (
        Gain(
            "size",
            "Does context order help, on a cache of which size?",
            "kv_tokens",
            "tokens of cache",
            "cache of the engine, tokens",
        ).as_question,
        StudyQuestion("why", ("size",), why),
        Gain(
            "batch",
            "How large must a batch be?",
            "batch_size",
            "requests in a batch",
            "requests in a batch",
        ).as_question,
        Gain(
            "diversity",
            "How does it depend on the number of contexts?",
            "contexts",
            "contexts",
            "contexts",
        ).as_question,
        Gain(
            "length",
            "How does it depend on the length of contexts?",
            "context_tokens",
            "tokens in a context",
            "context, tokens",
        ).as_question,
        Gain(
            "users",
            "And without batches, for users who wait for their replies?",
            "users",
            "users",
            "users",
        ).as_question,
    ),
)

TASK3 = Study(
    "task3",
    "Task 3: contexts that have to be found",
    "Users ask questions without a context. A RAG service ranks documents by cosine, BM25 and"
    " the question's words in the nearest sentences, and refuses a question whose best score is"
    " low. The first document is put before the question and is its label. Contexts can also be"
    " given: with true labels (`oracle`), none, or wrong ones (`shuffled`). A share of the found"
    " contexts can be made wrong (`--rag-wrong`).",
    (
        StudyQuestion("relevance", ("documents",), relevance),
        StudyQuestion("documents", ("documents",), documents),
        StudyQuestion("retrieval", ("users",), retrieval),
        StudyQuestion("labels", ("labels",), order_by_label),
        Gain(
            "size",
            "What is serving found contexts in order worth, on a cache of which size?",
            "kv_tokens",
            "tokens of cache",
            "cache of the engine, tokens",
        ).as_question,
    ),
)

TIERS = Study(
    "tiers",
    "Where KV lives: tiers behind the engine's cache",
    "The same requests, one after the other by one user, to a vLLM whose own cache is too small,"
    " with tiers of equal memory behind it: vLLM's own offload to host memory, with a folder of"
    " files behind that, and LMCache's memory, with files or a valkey node behind that; what lies"
    " behind memory has room for all. Beside them stand a cache that holds everything, and controls"
    " in which no tier can save anything.",
    QUESTIONS,
    run_s=25.0,
)

ENGINES = Study(
    "engines",
    "The ladder: from no KV cache to a prefix cache",
    "The same requests, by one user and by more and more at once, to engines of which each adds an"
    " idea to the one below: a KV cache, continuous batching over paged KV, and a prefix cache."
    " `transformers` is Hugging Face's own server; vLLM serves one request at a time, and then as"
    " it is. Prompts are of three lengths.",
    LADDER_QUESTIONS,
)

FLEET = Study(
    "fleet",
    "Several engines behind a router",
    "The same requests, by eight users at once, to vLLMs behind vLLM's router or HAProxy. Each"
    " engine has a cache of its own that holds a part of the contexts. Requests carry their context"
    " in the header `X-Session-ID`. Counts are those of the engines, added up. Engines begin each"
    " run with empty caches; a router keeps what it has learned in the runs before.",
    FLEET_QUESTIONS,
)

FP8 = Study(
    "fp8",
    "KV in eight bits: memory saved is capacity gained",
    "The same requests, one after the other, to vLLM with KV of 16 bits and with KV of eight"
    " (`--kv-cache-dtype fp8`), whose cache has twice as many tokens in the same bytes.",
    HALVED_QUESTIONS,
)

STUDIES = {study.name: study for study in (TASK1, TASK2, TASK3, TIERS, ENGINES, FLEET, FP8)}
IN_OVERVIEW = (*STUDIES, "task4-trained", "task4")
"""Studies by name, those of stored KV last, which are made in another way."""
