"""Requests that are not plain generation: what the queue makes of them."""

import pytest

pytest.importorskip("vllm")

from ask import Ask, make_request
from engine_shape import EngineShape, build_scheduler, settings
from virtual_load import tokens
from vllm.pooling_params import PoolingParams
from vllm.v1.request import Request, RequestStatus

from scheduler_plugin.queue import SchedulerView, label_of

CONTEXT = tokens(256, "requests")


@pytest.mark.parametrize("policy", ["fcfs", "prefix-group", "lpm"])
def test_a_pooling_request_is_served(policy: str) -> None:
    scheduler = build_scheduler(EngineShape(plugin=settings(policy=policy)))
    request = Request(
        request_id="embed",
        prompt_token_ids=[1, 2, 3],
        sampling_params=None,
        pooling_params=PoolingParams(task="embed"),
    )
    scheduler.add_request(request)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["embed"]
    assert request.status is RequestStatus.RUNNING


def test_a_request_that_passes_by_the_cache_counts_as_cold() -> None:
    scheduler = build_scheduler(EngineShape(plugin=settings(policy="lpm")))
    scheduler.add_request(make_request(Ask("first", "a", CONTEXT), 128))
    scheduler.schedule()
    view = SchedulerView(scheduler)
    later = make_request(Ask("later", "a", CONTEXT), 128)
    assert view.resident_blocks(later, 0) == 2
    assert view.resident_blocks(later, 1) == 2
    assert view.resident_blocks(later, 2) == 0
    later.skip_reading_prefix_cache = True
    assert view.resident_blocks(later, 0) == 0


def test_a_seat_is_one_that_vllm_would_give() -> None:
    scheduler = build_scheduler(EngineShape(plugin=settings(policy="reuse"), max_num_seqs=8))
    view = SchedulerView(scheduler)
    assert view.free_seats() == 8
    scheduler.max_num_active_reqs = 3  # as with --max-num-active-seqs
    assert view.free_seats() == 3
    scheduler.add_request(make_request(Ask("first", "a", CONTEXT), 128))
    scheduler.schedule()
    scheduler.num_waiting_for_streaming_input = 1
    assert view.free_seats() == 1


def test_the_label_of_a_request() -> None:
    request = make_request(Ask("one", "a", CONTEXT), 128)
    assert label_of(request) == "context:a"
    request.session_id = "s"
    assert label_of(request) == "context:a"
    request.sampling_params.extra_args = {"context": ["no", "label"]}
    assert label_of(request) == "session:s"
    request.session_id = None
    assert label_of(request) is None
