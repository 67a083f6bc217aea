import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers

from loadgen.errors import UsageError
from loadgen.workload import lengths
from loadgen.workload.lengths import EstimatedTokens, MeasuredTokens, TokenizerTokens, Tokens

TEXT = (
    "A cache holds what was computed before, so that a second request with the same beginning "
    "costs little. Caches are finite: what was used least recently leaves first (usually).\n\n"
    "In 2023, paging came to attention; 48 blocks of sixteen tokens were enough.\n\nWhy? Because."
)
DIGITS_ALONE = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@contextmanager
def hub(status: int) -> Iterator[str]:
    """A hub that has every model, or none."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def byte_level() -> Tokenizer:
    return trained(pre_tokenizers.ByteLevel(add_prefix_space=False))


def split_by_pattern() -> Tokenizer:
    split = pre_tokenizers.Split(Regex(DIGITS_ALONE), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return trained(pre_tokenizers.Sequence([split, level]))


def words_only() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[unk]": 0, "a": 1}, unk_token="[unk]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def trained(splitting: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = splitting
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


ALL: dict[str, Tokens] = {
    "byte level": TokenizerTokens(byte_level()),
    "by pattern": TokenizerTokens(split_by_pattern()),
    "words": TokenizerTokens(words_only()),
    "estimated": EstimatedTokens(),
    "measured": MeasuredTokens({TEXT: 97, "The": 1}),
}
every_kind = pytest.mark.parametrize("tokens", ALL.values(), ids=ALL.keys())
texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.lists(st.sampled_from(TEXT.split(" ")), max_size=40).map(" ".join),
    st.just(TEXT),
)


@every_kind
@given(text=texts, limit=st.integers(-1, 60))
def test_a_cut_is_a_prefix_within_the_limit(tokens: Tokens, text: str, limit: int) -> None:
    cut = tokens.cut(text, limit)
    assert text.startswith(cut)
    if tokens.count(text) <= limit:
        assert cut == text
    else:
        assert tokens.count(cut) <= max(limit, 0)


@pytest.mark.parametrize("make", [byte_level, split_by_pattern, words_only])
def test_plain_text_is_cut_to_the_very_token(make: Callable[[], Tokenizer]) -> None:
    tokens = TokenizerTokens(make())
    whole = tokens.count(TEXT)
    counts = [tokens.count(tokens.cut(TEXT, limit)) for limit in range(whole + 1)]
    assert counts == list(range(whole + 1))


def test_a_long_text_is_cut_like_a_short_one() -> None:
    tokens = TokenizerTokens(byte_level())
    assert tokens.cut(TEXT * 50, 30) == tokens.cut(TEXT, 30)
    spaces = " " * 10_000
    assert tokens.count(tokens.cut(spaces + TEXT, 50)) <= 50


def test_a_character_of_several_tokens_is_kept_whole_or_not_at_all() -> None:
    tokens = TokenizerTokens(byte_level())
    assert tokens.count("🦙") == 4
    assert [tokens.cut("🦙🦙", limit) for limit in (3, 4, 7)] == ["", "🦙", "🦙"]


def test_special_tokens_truncation_and_padding_do_not_count() -> None:
    tokenizer = byte_level()
    plain = TokenizerTokens(byte_level()).count(TEXT)
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=500)
    assert TokenizerTokens(tokenizer).count(TEXT) == plain


def test_a_tokenizer_is_found_by_file_folder_or_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    expected = TokenizerTokens(byte_level()).count(TEXT)
    for source in (tmp_path, tmp_path / "tokenizer.json"):
        assert TokenizerTokens.from_path_or_name(str(source)).count(TEXT) == expected
    asked: list[str] = []

    def download(name: str) -> Tokenizer:
        asked.append(name)
        return byte_level()

    monkeypatch.setattr(Tokenizer, "from_pretrained", download)
    with hub(200) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        assert TokenizerTokens.from_path_or_name("some/model").count(TEXT) == expected
    assert asked == ["some/model"]


def test_a_tokenizer_that_cannot_be_loaded_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Tokenizer:
        raise OSError(f"no\nconnection for {name}")

    monkeypatch.setattr(Tokenizer, "from_pretrained", refuse)
    (tmp_path / "broken.json").write_text("{")
    for source in (str(tmp_path), str(tmp_path / "broken.json"), "some/model"):
        with pytest.raises(UsageError) as error:
            TokenizerTokens.from_path_or_name(source)
        assert f"--tokenizer {source} cannot be loaded" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "source", ["", "./none", "/none/at/all", "~/none", "~nosuchuser/none", "models/none/x"]
)
def test_a_path_that_does_not_exist_is_not_asked_from_the_hub(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Tokenizer:
        pytest.fail(f"asked the hub for {name!r}")

    monkeypatch.setattr(Tokenizer, "from_pretrained", fail)
    with pytest.raises(UsageError, match="cannot be loaded"):
        TokenizerTokens.from_path_or_name(source)


def test_measured_texts_have_their_measured_length() -> None:
    tokens = MeasuredTokens({"one two": 7, "three": 1})
    assert tokens.count("one two") == 7
    assert tokens.counts == {"one two": 7, "three": 1}
    assert tokens.count("x" * 24) == 16  # 8 tokens in 12 characters


def test_a_measured_paragraph_is_cut_at_its_own_density() -> None:
    sparse, dense = "word " * 20, "0123 " * 20
    tokens = MeasuredTokens({sparse: 20, dense: 100})
    assert tokens.cut(dense, 50).count("0123") == 10
    assert tokens.cut(sparse, 10).count("word") <= 10


def test_an_estimate_is_four_characters_a_token_and_says_so() -> None:
    tokens = EstimatedTokens()
    assert [tokens.count("x" * length) for length in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert "--tokenizer" in tokens.announcement


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("says no", r"the hub has no such tokenizer \(HTTP 404\)"),
        ("is away", "the hub cannot be reached"),
        ("hangs", r"the hub (does not answer|cannot be reached \(timed out\))"),
    ],
)
def test_a_name_that_the_hub_does_not_give_is_told_at_once(
    kind: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "HUB_S", 0.5 if kind == "hangs" else 30.0)
    with hub(404) as refusing, socket.create_server(("127.0.0.1", 0)) as silent:
        away = "http://127.0.0.1:9"
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = {"says no": refusing, "hangs": hanging, "is away": away}[kind]
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        began = time.monotonic()
        with pytest.raises(UsageError, match=said) as error:
            TokenizerTokens.from_path_or_name("no-such/model")
    assert time.monotonic() - began < 20, "the hub's own client tries for 25 s"
    assert "\n" not in str(error.value)


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="HF_HUB_OFFLINE is set"):
        TokenizerTokens.from_path_or_name("no-such/model")
