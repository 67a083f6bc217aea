import json
import re
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from loadgen.errors import UsageError
from loadgen.targets import demo_model
from loadgen.targets.demo_model import Shape, build_model, default_model_dir, is_complete
from loadgen.targets.settings import model_window_tokens
from rag_store.extras import install_command

TEXTS = [
    "The cache keeps keys and values, café and naïve ones too. " * 5,
    "Tokens wait in a queue.",
]


@pytest.fixture(autouse=True)
def _a_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(hidden=64, layers=2, heads=4, kv_heads=2, intermediate=96)
    monkeypatch.setitem(demo_model.SHAPES, "tiny", shape)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_the_same_texts_and_seed_give_the_same_files_and_others_do_not(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first, second, other_seed, other_texts = (
        contents(build_model(tmp_path / str(i), "tiny", texts, seed))
        for i, (texts, seed) in enumerate([(TEXTS, 0), (TEXTS, 0), (TEXTS, 1), (TEXTS[1:], 0)])
    )
    assert first == second
    assert first["tokenizer.json"] == other_seed["tokenizer.json"]
    assert first["model.safetensors"] != other_seed["model.safetensors"]
    assert first["tokenizer.json"] != other_texts["tokenizer.json"]


def test_a_model_is_complete_and_what_it_says_of_itself_fits_together(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    directory = tmp_path / "models" / "tiny"
    assert not is_complete(directory)
    assert build_model(directory, "tiny", iter(TEXTS)) == directory
    assert is_complete(directory)
    config = json.loads((directory / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert config["vocab_size"] == tokenizer.get_vocab_size()
    assert tokenizer.decode([config["eos_token_id"]], skip_special_tokens=False) == "<|im_end|>"
    assert model_window_tokens(str(directory)) == 12288
    assert [path.name for path in tmp_path.joinpath("models").iterdir()] == ["tiny"]


def test_any_text_survives_the_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    directory = build_model(tmp_path / "m", "tiny", TEXTS)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    text = "Ω ≠ 42\n\n\tif x:  'quoted' <|im_start|>user 漢字 🎈"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<|im_start|>") in ids


def test_tokens_without_text_are_never_the_likeliest(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    directory = build_model(tmp_path / "m", "tiny", TEXTS)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    head = load_file(directory / "model.safetensors")["lm_head.weight"]
    states = torch.randn((200, head.shape[1]), generator=torch.Generator().manual_seed(1))
    for token in set((states.bfloat16() @ head.T).argmax(dim=1).tolist()):
        text = tokenizer.decode([token])
        assert text
        assert "\ufffd" not in text


def test_the_same_model_is_kept_and_another_takes_its_place(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    directory = build_model(tmp_path / "m", "tiny", TEXTS)
    written = (directory / "model.safetensors").stat().st_mtime_ns
    build_model(directory, "tiny", TEXTS)
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    build_model(directory, "tiny", TEXTS, seed=3)
    assert json.loads((directory / "kvswarm.json").read_text())["seed"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_foreign_directory_or_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="holds other files"):
        build_model(tmp_path, "tiny", TEXTS)
    with pytest.raises(UsageError, match="is a file"):
        build_model(tmp_path / "thesis.txt", "tiny", TEXTS)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_an_unknown_size_and_empty_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'huge': choose one of tiny, small"):
        build_model(tmp_path / "m", "huge", TEXTS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="texts"):
        build_model(tmp_path / "m", "tiny", [" "])
    assert not list(tmp_path.iterdir())


def test_a_missing_torch_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=re.escape(f"torch: {install_command('engine-cpu')}")):
        build_model(tmp_path / "m", "tiny", TEXTS)
    assert not list(tmp_path.iterdir())


def test_models_live_in_the_users_cache_or_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSWARM_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_model_dir("tiny") == tmp_path / ".cache" / "kvswarm" / "models" / "tiny"
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "mine"))
    assert default_model_dir("small") == tmp_path / "mine" / "models" / "small"
