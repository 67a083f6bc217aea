from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from loadgen.context import Document, Question
from loadgen.workload import contexts as module
from loadgen.workload.contexts import ContextSource
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import EstimatedTokens, MeasuredTokens, TokenizerTokens, Tokens
from loadgen.workload.passages import PassageLengths, composable_passages, texts_to_measure, walk
from loadgen.workload.settings import Span, WorkloadSettings

WORDS = [
    "cache",
    "block",
    "token",
    "page",
    "reuse",
    "queue",
    "batch",
    "prefix",
    "model",
    "window",
    "store",
    "shard",
]
ENDINGS = [".", "?", ").", ".”", ":", " 48", ""]


def document(number: int, paragraphs: int = 6) -> Document:
    lines = [
        " ".join(WORDS[(number * 5 + line * 3 + word) % 10] for word in range(30 + line))
        + ENDINGS[(number + line) % len(ENDINGS)]
        for line in range(paragraphs)
    ]
    title = f"{WORDS[number].capitalize()} matters"
    return Document(f"doc-{number}", title, "\n\n".join([f"# {title}", *lines]))


def corpus_of(*documents: Document, questions: int = 3) -> Corpus:
    asked = {
        each.doc_id: tuple(
            Question(f"{each.doc_id}-q{number}", f"Why {number} in {each.doc_id}?", each.doc_id)
            for number in range(questions)
        )
        for each in documents
    }
    return Corpus(documents, asked)


CORPUS = corpus_of(*(document(number) for number in range(4)))


def trained() -> TokenizerTokens:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator((each.text for each in CORPUS.documents), trainer)
    return TokenizerTokens(tokenizer)


TOKENS = trained()


def book(
    corpus: Corpus = CORPUS,
    tokens: Tokens = TOKENS,
    span: Span | None = None,
    seed: int = 0,
    contexts: int = 50,
) -> ContextSource:
    settings = WorkloadSettings(seed=seed, contexts=contexts, context_tokens=span)
    return ContextSource(corpus, settings, tokens)


def test_the_first_contexts_are_the_documents_themselves() -> None:
    made = [book().context(index) for index in range(4)]
    assert [each.context_id for each in made] == [each.doc_id for each in CORPUS.documents]
    assert [each.text for each in made] == [each.text for each in CORPUS.documents]


@pytest.mark.parametrize("span", [None, Span(16, 16), Span(50, 400), Span(5000, 5000)])
def test_a_context_says_its_true_length(span: Span | None) -> None:
    contexts = book(span=span)
    for index in range(20):
        context = contexts.context(index)
        assert context.tokens == TOKENS.count(context.text)


@pytest.mark.parametrize("span", [Span(16, 16), Span(50, 400), Span(5000, 5000)])
def test_a_drawn_length_is_kept_and_never_exceeded(span: Span) -> None:
    contexts = book(span=span)
    for index in range(20):
        drawn = contexts.drawn_tokens(index)
        assert drawn is not None
        assert span.low <= drawn <= span.high
        assert drawn - 4 <= contexts.context(index).tokens <= drawn


def test_drawn_lengths_spread_over_the_span() -> None:
    contexts = book(span=Span(100, 299))
    drawn = [contexts.drawn_tokens(index) or 0 for index in range(1000)]
    assert 190 < sum(drawn) / 1000 < 210
    assert min(drawn) < 110
    assert max(drawn) > 290


def test_a_document_is_cut_to_a_prefix_or_lengthened_by_others() -> None:
    whole = CORPUS.documents[1]
    assert whole.text.startswith(book(span=Span(40, 40)).context(1).text)
    longer = book(span=Span(2000, 2000)).context(1).text
    assert longer.startswith(whole.text + "\n\n")
    added = longer.removeprefix(whole.text).split("\n\n")
    assert not set(added[1:5]) & set(whole.text.split("\n\n"))


def test_a_lone_document_is_lengthened_by_itself() -> None:
    assert book(corpus_of(document(0)), span=Span(3000, 3000)).context(0).tokens > 2990


def test_without_a_span_composed_contexts_are_as_long_as_the_mean_document() -> None:
    contexts = book()
    mean = sum(contexts.context(index).tokens for index in range(4)) // 4
    assert all(mean - 4 <= contexts.context(index).tokens <= mean for index in range(4, 40))


def test_composed_contexts_have_own_ids_and_are_made_of_the_corpus() -> None:
    context = book().context(12)
    assert context.context_id == "mix-00012" == book().context_id(12)
    opening, *paragraphs = context.text.split("\n\n")
    known = {passage.text for passage in composable_passages(CORPUS.documents)}
    assert opening.startswith("Text 12 begins with a passage on ")
    assert set(paragraphs[:-1]) <= known
    assert any(text.startswith(paragraphs[-1]) for text in known)


def test_a_document_called_like_a_composed_context_keeps_its_id_to_itself() -> None:
    contexts = book(corpus_of(Document("mix-00001", "A", "Some words.")))
    assert contexts.context(0).context_id == "mix-00001"
    assert contexts.context(1).context_id == "xmix-00001"


@pytest.mark.parametrize("span", [None, Span(16, 16), Span(16, 300)])
@pytest.mark.parametrize("tokens", [TOKENS, EstimatedTokens()])
def test_no_two_contexts_share_their_first_block(tokens: Tokens, span: Span | None) -> None:
    contexts = book(corpus_of(*ALIKE, *CORPUS.documents), tokens, span, contexts=300)
    heads = {tuple(first_block(contexts.context(index).text)) for index in range(300)}
    assert len(heads) == 300


ALIKE = (
    Document("a", "One", "Notice: all rights reserved. First of two."),
    Document("b", "Two", "Notice: all rights reserved. Second of two."),
    Document("c", "Three", "Text 20 begins with a passage on Four."),
    Document("d", "Four", "x"),
    Document("e", "Five", "x"),
)


def first_block(text: str) -> list[int]:
    return TOKENS._tokenizer.encode(text).ids[:16]


def test_the_distinguishing_number_stands_within_ten_tokens() -> None:
    text = book().context(9999).text
    assert "9999 " in TOKENS.cut(text, 10)


def test_the_same_seed_gives_the_same_contexts_in_any_order() -> None:
    forth, back = book(span=Span(50, 400), seed=7), book(span=Span(50, 400), seed=7)
    later = [back.context(index) for index in reversed(range(30))]
    assert [forth.context(index) for index in range(30)] == later[::-1]


def test_another_seed_composes_other_contexts() -> None:
    one, other = book(seed=1), book(seed=2)
    assert all(one.context(index).text != other.context(index).text for index in range(4, 20))


def test_contexts_are_kept_until_the_cache_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = book()
    assert contexts.context(9) is contexts.context(9)
    monkeypatch.setattr(module, "CACHED_CHARACTERS", 3 * len(contexts.context(9).text) + 99)
    contexts = book()
    kept, lost = contexts.context(4), contexts.context(5)
    for index in (6, 4, 7):
        contexts.context(index)
    assert contexts.context(4) is kept
    assert contexts.context(5) is not lost
    assert contexts.context(5) == lost


def test_warming_makes_contexts_beforehand() -> None:
    counted: list[str] = []

    class Watched(EstimatedTokens):
        def count(self, text: str) -> int:
            counted.append(text)
            return super().count(text)

    contexts = book(tokens=Watched(), contexts=10)
    contexts.warm(budget_s=60)
    before = len(counted)
    assert before > 0
    for index in range(10):
        contexts.context(index)
    assert len(counted) == before


def test_far_contexts_cost_nothing_before_they_are_asked_for() -> None:
    contexts = book(contexts=10_000_000)
    assert contexts.context(9_999_999).text.startswith("Text 9999999 ")
    assert len(contexts._pages) == 1


def test_a_documents_questions_come_in_order_and_then_varied() -> None:
    asked = [book().page(1).ask(number) for number in range(8)]
    assert asked[:3] == [(f"doc-1-q{number}", f"Why {number} in doc-1?") for number in range(3)]
    assert [question_id for question_id, _ in asked[3:]] == [
        "doc-1-q0~2",
        "doc-1-q1~2",
        "doc-1-q2~2",
        "doc-1-q0~3",
        "doc-1-q1~3",
    ]
    assert all(asked[number + 3][1].startswith(asked[number][1]) for number in range(3))


@given(index=st.integers(0, 49))
def test_no_question_of_a_context_is_asked_twice(index: int) -> None:
    contexts = book()
    asked = [contexts.page(index).ask(number) for number in range(200)]
    assert len({question_id for question_id, _ in asked}) == 200
    assert len({text for _, text in asked}) == 200


def test_questions_of_the_same_text_are_asked_once() -> None:
    same = tuple(Question(f"q{number}", "Why?", "doc-0") for number in range(2))
    contexts = book(Corpus((document(0),), {"doc-0": same}))
    assert [contexts.page(0).ask(number)[0] for number in range(2)] == ["q0", "q0~2"]


def test_composed_contexts_take_the_questions_of_their_paragraphs() -> None:
    contexts = book(span=Span(60, 60))
    for index in range(4, 30):
        text = contexts.context(index).text
        asked = contexts.page(index).ask(0)[0].removesuffix("-q0")
        source = next(each for each in CORPUS.documents if each.doc_id == asked)
        passage = text.split("\n\n")[1][:40]
        assert passage in source.text


def test_a_measured_table_gives_the_tokenizers_lengths() -> None:
    table = {text: TOKENS.count(text) for text in texts_to_measure(CORPUS)}
    measured = book(tokens=MeasuredTokens(table))
    for index in range(4):
        assert measured.context(index).tokens == book().context(index).tokens
    composed = measured.context(9)
    assert composed.tokens == pytest.approx(TOKENS.count(composed.text), rel=0.1)


@given(st.integers(1, 200), st.integers(0, 2**64 - 1))
def test_a_walk_passes_everything_once_and_then_again(count: int, number: int) -> None:
    steps: Iterator[int] = walk(count, number)
    first = list(islice(steps, count))
    assert sorted(first) == list(range(count))
    assert list(islice(steps, count)) == first


def test_headings_are_composed_only_where_there_is_nothing_else() -> None:
    heading = Document("h", "Only", "# Only\n\n## Headings")
    assert len(composable_passages([heading])) == 2
    mixed = composable_passages([heading, document(0)])
    assert not [each.text for each in mixed if each.text.startswith("#")]
    assert book(corpus_of(heading, document(0)), span=Span(900, 900)).context(1).tokens > 890


def test_a_ruler_counts_a_paragraph_once_and_never_as_nothing() -> None:
    class Silent(EstimatedTokens):
        asked = 0

        def count(self, text: str) -> int:
            self.asked += 1
            return 0

    tokens = Silent()
    ruler = PassageLengths(tokens)
    assert [ruler.paragraph_tokens("One."), ruler.paragraph_tokens("One.")] == [1, 1]
    assert tokens.asked == 1
