from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.targets.catalog import load_catalog
from loadgen.targets.hardware import has_bfloat16_kernels, require_fp8_kernels


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("flags\t\t: fpu sse2 avx avx2 f16c\n", False),
        ("flags\t\t: fpu sse2 avx2 avx512f avx512bw avx512_vnni\n", True),
        ("flags\t\t: fpu sse2 avx2 avx512f avx512cd avx512er\n", False),
        ("flags\t\t: fpu avx2 avx_vnni avx_ne_convert\n", True),
        ("Features\t: fp asimd bf16 i8mm\n", True),
        ("Features\t: fp asimd aes\n", False),
        ("model name\t: avx512bw\nflags\t\t: avx2\n", False),
        ("processor\t: 0\n", True),
    ],
)
def test_the_processor_says_whether_there_are_kernels_for_bfloat16(
    line: str, there: bool, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\nprocessor\t: 1\n{line}")
    assert has_bfloat16_kernels(cpuinfo) is there


def test_kv_in_eight_bits_is_refused_without_kernels(tmp_path: Path) -> None:
    spec, plain = (load_catalog()[name] for name in ("vllm-fp8", "vllm"))
    cpuinfo = tmp_path / "cpuinfo"
    require_fp8_kernels(spec, "cpu", cpuinfo)  # which the file does not tell
    cpuinfo.write_text("flags\t\t: fpu avx2\n")
    with pytest.raises(
        UsageError, match="target vllm-fp8 needs a GPU, or a processor with AVX-512"
    ):
        require_fp8_kernels(spec, "cpu", cpuinfo)
    require_fp8_kernels(spec, "gpu", cpuinfo)
    require_fp8_kernels(plain, "cpu", cpuinfo)
    cpuinfo.write_text("flags\t\t: fpu avx2 avx512f\n")
    require_fp8_kernels(spec, "cpu", cpuinfo)


def test_a_system_without_that_file_is_left_as_it_is(tmp_path: Path) -> None:
    assert has_bfloat16_kernels(tmp_path / "none")
