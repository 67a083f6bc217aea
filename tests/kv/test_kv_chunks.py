"""Which files belong to which tokens, whatever else lies in the folder."""

from pathlib import Path

import pytest
from packed_chunks import file_name

from kv_reading import KvError
from kv_reading.stored import ChunkName, FsTier, Missing, chunk_digests, parse_name

TOKENS = tuple(range(100, 400))
FIRST, SECOND = (
    "5b0b68fc465f79135ebcdc6d1f346224260718bcf55bf6e285eb425f8652647f",
    "914b22873f28a1c699bf52d3f40e4b314c0dcfba5c1f8ccc230bcfdab9a4b5fc",
)
"""By LMCache 0.5.6: TokenHasher(128, "blake3").compute_chunk_hashes(TOKENS)."""


def write(folder: Path, digest: bytes, content: bytes, model: str = "org/model") -> Path:
    path = folder / file_name(ChunkName(model, 0x01000100, 0, digest))
    path.write_bytes(content)
    return path


def test_digests_are_those_of_lmcache() -> None:
    assert [each.hex() for each in chunk_digests(TOKENS, 128)] == [FIRST, SECOND]


def test_a_digest_tells_all_tokens_before_it() -> None:
    other = (1, *TOKENS[1:])
    assert chunk_digests(other, 128)[1] != chunk_digests(TOKENS, 128)[1]
    assert chunk_digests(TOKENS[:255], 128) == chunk_digests(TOKENS, 128)[:1]
    assert chunk_digests(TOKENS[:127], 128) == []


def test_a_name_comes_back() -> None:
    for salt in ("", "user-1"):
        name = ChunkName("org/model", 0x02010201, 3, bytes(range(32)), salt)
        assert parse_name(Path(file_name(name))) == name


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "model@0x01000100@0@00ff.data",
        f"model@0x01000100@0@{'0f' * 32}.data.tmp",
        f"model@rank@0@{'0f' * 32}.data",
        f"{'0f' * 32}.data",
        f"a@b@c@d@e@{'0f' * 32}.data",
    ],
)
def test_other_files_are_no_chunks(name: str) -> None:
    assert parse_name(Path(name)) is None


def test_a_request_is_read_in_the_order_of_its_tokens(tmp_path: Path) -> None:
    for content, digest in zip((b"one", b"two"), chunk_digests(TOKENS, 128), strict=True):
        write(tmp_path, digest, content)
    (tmp_path / "notes.data").write_text("foreign")
    (tmp_path / file_name(ChunkName("m", 1, 0, bytes(32)))).mkdir()
    tier = FsTier(tmp_path)
    assert tier.read(TOKENS, 128, 3) == [b"one", b"two"]
    assert tier.missing([*chunk_digests(TOKENS, 128), bytes(32)]) == 1


def test_what_is_missing_or_truncated_is_said_and_not_read(tmp_path: Path) -> None:
    first, second = chunk_digests(TOKENS, 128)
    write(tmp_path, first, b"one")
    tier = FsTier(tmp_path)
    assert tier.missing([first, second]) == 1
    assert tier.read(TOKENS, 128, 3) == Missing(f"chunk 1 of 2 is not in {tmp_path}")
    path = write(tmp_path, second, b"tw")
    assert FsTier(tmp_path).read(TOKENS, 128, 3) == Missing("chunk 1 has 2 bytes, not 3")
    path.write_bytes(b"two")
    tier = FsTier(tmp_path)
    path.unlink()  # evicted after the folder was read
    assert isinstance(tier.read(TOKENS, 128, 3), Missing)
    assert isinstance(tier.read(TOKENS[:100], 128, 3), Missing)


def test_two_models_in_one_folder_are_refused(tmp_path: Path) -> None:
    first, second = chunk_digests(TOKENS, 128)
    write(tmp_path, first, b"one")
    write(tmp_path, second, b"two", model="other")
    with pytest.raises(KvError, match="several models"):
        FsTier(tmp_path)
    with pytest.raises(KvError, match="cannot read the tier"):
        FsTier(tmp_path / "nowhere")
