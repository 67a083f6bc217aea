"""Whether the installed vLLM still is what the specs and the worker were written for.

`python -m kv_tiers.vllm_source` reads vLLM's source, without importing it, and tells what has
changed of what they lean on. Comments, docstrings and layout do not count. Whoever lifts vLLM reads
what is named, mends specs and worker where they must be, runs the tests and then
`python -m kv_tiers.vllm_source --known` for the table below.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

KNOWN_VERSION = "0.32"
KNOWN: dict[str, dict[str, str]] = {
    "v1/kv_offload/base.py": {
        "BlockIDsLoadStoreSpec": "359f87d6afe68840",
        "GPULoadStoreSpec": "aefd1ef13c0006be",
        "CanonicalKVCacheTensor": "ae5760cf15ecf478",
        "CanonicalKVCacheRef": "8c25b2fe13e83a7e",
        "CanonicalKVCaches": "ca79499f747ee0de",
        "TransferResult": "ce64e8b385210b7f",
        "OffloadingWorker": "3e18392e69fdc04a",
        "OffloadingSpec": "d073fcaee6ce34da",
        "LookupResult": "b950ac70caa2b83c",
        "ReqContext": "cf8a8b55406952fa",
        "RequestOffloadingContext": "87d386852dbbff58",
        "ScheduleEndContext": "02d9b969769fb3e6",
        "OffloadingManager": "118522026dd687b3",
        "get_offload_block_hash": "f6774bbc09f7976c",
        "get_offload_group_idx": "6109a51f178c544f",
    },
    "v1/kv_offload/factory.py": {
        "OffloadingSpecFactory.get_spec_cls": "ea1090da9ffcd038",
        "OffloadingSpecFactory.create_spec": "87c56b366be85d56",
    },
    "v1/kv_offload/config.py": {
        "OffloadingParallelConfig": "290413e569ed92aa",
        "OffloadingConfig": "1594df62d89821b1",
        "OffloadingGroupConfig": "95c90edec320de61",
        "OffloadingModelConfig": "1bf9c8fb425957a5",
    },
    "v1/kv_offload/cpu/spec.py": {
        "CPUOffloadingSpec.__init__": "479171b4182d0b99",
        "CPUOffloadingSpec.get_manager": "03bb6e40536351a4",
        "CPUOffloadingSpec.create_worker": "0dc7b360c520d3df",
        "CPUOffloadingSpec.get_worker": "9169cd7208fe0775",
    },
    "v1/kv_offload/cpu/common.py": {
        "CPULoadStoreSpec": "6cb44484a3365fec",
    },
    "v1/kv_offload/cpu/gpu_worker.py": {
        "compute_sub_block_ptrs": "0a95084f8ad4a84c",
        "SingleDirectionOffloadingHandler._fill_direct_ops": "69d80955381043a4",
        "SingleDirectionOffloadingHandler.transfer_async": "576d634f21d7690a",
        "SingleDirectionOffloadingHandler.get_finished": "c75aee3806a61762",
        "CPUOffloadingWorker": "9152e0a1666f9c1f",
    },
    "v1/kv_offload/cpu/shared_offload_region.py": {
        "SharedOffloadRegion.__init__": "d0fb80c5fcc33c7f",
        "SharedOffloadRegion.create_next_worker_view": "7562d3b457266aaf",
        "SharedOffloadRegion.create_kv_memoryview": "58f86fb72ffe413b",
        "SharedOffloadRegion.cleanup": "fee0509599461924",
    },
    "v1/kv_offload/tiering/spec.py": {
        "TieringOffloadingSpec.__init__": "9cfea4216ad46e01",
        "TieringOffloadingSpec.get_manager": "ee58491bd18424aa",
        "TieringOffloadingSpec.create_worker": "daa231a86eb821d0",
    },
    "v1/kv_offload/tiering/manager.py": {
        "TieringOffloadingManager._process_finished_jobs": "b20825004bcf4ebd",
        "TieringOffloadingManager._complete_promotion": "7c9f4e965a78d651",
        "TieringOffloadingManager.reset_cache": "2b155e0dd39b38ac",
        "TieringOffloadingManager.shutdown": "050b7264872f1e19",
    },
    "v1/kv_offload/tiering/base.py": {
        "JobResult": "19e8ebbddbcb0ef4",
        "SecondaryTierManager": "60b61226ddb40934",
        "TransferJob": "b35139312d138cb3",
    },
    "v1/kv_offload/tiering/async_lookup.py": {
        "AsyncLookupManager": "e00a0f4b256321d7",
    },
    "v1/kv_offload/tiering/factory.py": {
        "SecondaryTierFactory.create_secondary_tier": "56b650d922a87f97",
        "SecondaryTierFactory.get_tier_class": "b53135a4de0301f9",
    },
    "v1/kv_offload/file_mapper.py": {
        "FileMapper": "cff50a147b98f3b5",
    },
    "v1/kv_offload/tiering/fs/manager.py": {
        "FileSystemTierManager": "a1274af39ca5cd74",
    },
    "v1/kv_offload/tiering/fs/io.py": {
        "batch_store_block": "17b60b9acfc53d7b",
        "batch_load_block": "e8dc6d26d4a96429",
        "_store_block": "baa4a245b16b6b81",
        "_load_block": "9ced8b78829ebbe5",
        "_get_tmp_suffix": "bfb91dc3ddc0b1d1",
    },
    "v1/kv_offload/tiering/fs/thread_pool.py": {
        "DualQueueThreadPool": "1cb293595b16ba7a",
        "JobState": "7efca6fbeb37657d",
    },
    "v1/attention/backends/cpu_attn.py": {
        "CPUAttentionMetadataBuilder._set_isa_to_layers": "36af9bafe3f9f87a",
        "CPUAttentionBackendImpl.do_kv_cache_update": "ab4e57a9dc7f4adc",
        "_get_attn_isa": "fad3fea12298ed04",
    },
    "distributed/kv_transfer/kv_connector/v1/offloading/config.py": {
        "build_offloading_config": "cd2f5569834002d5",
    },
    "distributed/kv_transfer/kv_connector/v1/offloading/worker.py": {
        "OffloadingConnectorWorker": "c9fa0badcd4415a7",
    },
    "v1/worker/gpu/kv_connector.py": {
        "ActiveKVConnector": "5d065f14a5301e63",
    },
}
"""Digests of classes and functions, by vLLM's file."""


def changes(vllm: Path | None = None) -> list[str]:
    """What is gone or differs in the vLLM of that folder, as sentences; the installed one's."""
    root = vllm or installed()
    found = []
    for file, expected in KNOWN.items():
        actual = _digests(root / file, tuple(expected))
        for name, digest in expected.items():
            if actual.get(name) != digest:
                verb = "has changed" if name in actual else "is gone"
                found.append(f"vllm/{file}: {name} {verb} since vLLM {KNOWN_VERSION}")
    return found


def known(vllm: Path | None = None) -> dict[str, dict[str, str]]:
    """The table of the vLLM of that folder. Raises LookupError for names that are gone."""
    root = vllm or installed()
    table = {file: _digests(root / file, tuple(names)) for file, names in KNOWN.items()}
    gone = [f"vllm/{file}: {name}" for file in KNOWN for name in KNOWN[file].keys() - table[file]]
    if gone:
        told = "\n".join(sorted(gone))
        raise LookupError(f"{told}\nThese are gone: name what stands for them in KNOWN, or nothing")
    return table


def installed() -> Path:
    """vLLM's folder. Raises ModuleNotFoundError."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("vLLM is not installed", name="vllm")
    return Path(spec.origin).parent


def _digests(file: Path, names: tuple[str, ...]) -> dict[str, str]:
    if not file.is_file():
        return {}
    nodes = dict(_named(ast.parse(file.read_text(encoding="utf-8"))))
    return {name: _digest(nodes[name]) for name in names if name in nodes}


def _named(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Classes and functions, a method as `Class.method`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield prefix + node.name, node
            yield from _named(node, f"{prefix}{node.name}.")


def _digest(node: ast.AST) -> str:
    for each in ast.walk(node):
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(each) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]


def _main() -> None:
    if "--known" in sys.argv:
        try:
            sys.stdout.write(f"KNOWN = {known()!r}\n")
        except LookupError as error:
            sys.exit(str(error))
    elif said := changes():
        sys.exit("\n".join(said))


if __name__ == "__main__":
    _main()
