import socket
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.launch.arguments import parse_run
from loadgen.launch.target_run import plan_target_runs
from loadgen.scratch import scratch_folder
from loadgen.targets.catalog import load_catalog
from loadgen.targets.hardware import (
    CONTROL,
    VLLM_SOCKET,
    has_bfloat16_kernels,
    require_fp8_kernels,
    require_short_tmpdir,
)
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import check_target


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


@pytest.mark.parametrize(("name", "most"), [(VLLM_SOCKET, 53), (CONTROL, 82)])
def test_the_longest_tmpdir_is_the_longest_in_which_sockets_can_be_made(
    name: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", "/" + (most - 1) * "t")
    require_short_tmpdir(name)
    with scratch_folder(place=tmp_path) as folder:
        path = f"{'t' * most}/{folder.name}/{name}"
    (tmp_path / path).parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as line:
        with pytest.raises(OSError, match="too long"):
            line.bind(f"{path}x")
        line.bind(path)
    monkeypatch.setattr("tempfile.tempdir", "/" + most * "t")
    with pytest.raises(UsageError, match=f"too long for sockets: .* at most {most} bytes"):
        require_short_tmpdir(name)


def test_a_tmpdir_that_is_too_long_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    monkeypatch.setattr("tempfile.tempdir", "/" + 89 * "t")
    for name in ("vllm", "vllm-fleet", "vllm-lmcache"):
        with pytest.raises(UsageError, match="TMPDIR is too long for sockets"):
            check_target(load_catalog()[name], TargetSettings("m"))
    with pytest.raises(UsageError, match="TMPDIR is too long for sockets"):
        plan_target_runs(parse_run("run", ["unordered", "--target", "hf-cache"]))


def test_vllm_s_sockets_may_be_in_another_folder_than_a_long_tmpdir(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def next_check(*_: object) -> None:
        raise UsageError("the next check")

    monkeypatch.setattr("tempfile.tempdir", "/" + 60 * "t")
    monkeypatch.setattr("loadgen.targets.target.require_packages", next_check)
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "/run")
    with pytest.raises(UsageError, match="the next check"):
        check_target(load_catalog()["vllm"], TargetSettings("m"))
    monkeypatch.delenv("VLLM_RPC_BASE_PATH")
    with pytest.raises(UsageError, match="TMPDIR is too long for sockets"):
        check_target(load_catalog()["vllm"], TargetSettings("m"))
