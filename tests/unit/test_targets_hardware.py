from pathlib import Path

import pytest

from loadgen.targets.hardware import has_fast_bfloat16


@pytest.mark.parametrize(
    ("line", "fast"),
    [
        ("flags\t\t: fpu sse2 avx avx2 f16c\n", False),
        ("flags\t\t: fpu sse2 avx2 avx512f avx512bw avx512_vnni\n", True),
        ("flags\t\t: fpu avx2 avx_vnni avx_ne_convert\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd aes\n", False),
        ("model name\t: avx512bw\nflags\t\t: avx2\n", False),
        ("processor\t: 0\n", True),
    ],
)
def test_the_processor_says_whether_bfloat16_is_fast(line: str, fast: bool, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\nprocessor\t: 1\n{line}")
    assert has_fast_bfloat16(cpuinfo) is fast


def test_a_system_without_that_file_is_left_as_it_is(tmp_path: Path) -> None:
    assert has_fast_bfloat16(tmp_path / "none")
