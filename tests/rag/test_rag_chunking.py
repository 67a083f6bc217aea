"""Texts are cut into chunks that cover them, and put together again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_store.documents import Chunker, join, sentences
from rag_store.errors import RagUsageError


@given(st.text(max_size=400), st.integers(2, 20), st.integers(0, 19))
def test_chunks_put_together_are_the_text(text: str, size: int, overlap: int) -> None:
    chunks = Chunker(size, min(overlap, size - 1)).cut(text)
    assert join(chunks) == text


def test_chunks_overlap_and_keep_their_size() -> None:
    chunks = Chunker(128, 32).cut(" ".join(f"w{at:03}" for at in range(500)))
    words = [chunk.text.split() for chunk in chunks]
    assert all(len(each) == 128 for each in words[:-1])
    assert all(before[-32:] == after[:32] for before, after in pairwise(words))


def test_each_sign_of_chinese_and_japanese_is_a_token() -> None:
    chunks = Chunker(128, 32).cut("数据库" * 2000)
    assert {len(each.text) for each in chunks[:-1]} == {128}
    assert [each.text for each in Chunker(4, 0).cut("ログを複製GPU内存")] == [
        "ログを複",
        "製GPU内存",
    ]


def test_other_texts_are_cut_as_their_words_are_long() -> None:
    text = "Prefix caching saves 98% of max_model_len's time, naïvely: Привет, 한국어!"
    assert [each.text for each in Chunker(8, 2).cut(text)] == [
        "Prefix caching saves 98% of ",
        "% of max_model_len'",
        "len's time, naïvely: ",
        ": Привет, 한국어!",
    ]


def test_a_word_without_end_is_cut_too() -> None:
    assert len(Chunker(128, 32).cut("a" * 5000)) > 5


def test_an_empty_text_is_one_chunk() -> None:
    assert [chunk.text for chunk in Chunker().cut("")] == [""]


def test_an_overlap_as_long_as_the_chunk_is_refused() -> None:
    with pytest.raises(RagUsageError, match="--overlap-tokens is 32"):
        Chunker(32, 32)


@given(st.text(alphabet="ab. \n?A", max_size=200))
def test_sentences_hold_all_but_white_space(text: str) -> None:
    found = sentences(text)
    assert "".join("".join(each.split()) for each in found) == "".join(text.split())
    assert all(each and each in text for each in found)


def test_sentences_end_where_the_next_begins_with_a_capital() -> None:
    found = sentences("It holds 2.5 kg, e.g. water. Close it!\nThen wait")
    assert list(found) == [
        "It holds 2.5 kg, e.g. water.",
        "Close it!",
        "Then wait",
    ]


def test_a_sentence_without_end_is_cut_too() -> None:
    assert len(sentences("cell, " * 500)) > 5
