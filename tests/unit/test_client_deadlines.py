"""Deadlines behind one timer, and names that are looked up once."""

import asyncio
import socket
import time
from typing import Any

import pytest

from loadgen.client.addresses import Addresses
from loadgen.client.deadlines import Deadlines, time_limit


class Request:
    def __init__(self) -> None:
        self.expired = asyncio.Event()

    def expire(self) -> None:
        self.expired.set()


async def test_each_expires_in_its_turn_however_they_were_set() -> None:
    deadlines, now = Deadlines[Request](), time.perf_counter()
    first, second, third, dropped = (Request() for _ in range(4))
    deadlines.set(third, now + 0.06)
    deadlines.set(first, now + 60)
    deadlines.set(first, now + 0.02)
    deadlines.set(second, now + 0.04)
    deadlines.set(dropped, now + 0.02)
    deadlines.drop(dropped)
    for request, due_at in ((first, now + 0.02), (second, now + 0.04), (third, now + 0.06)):
        await asyncio.wait_for(request.expired.wait(), 10)
        assert time.perf_counter() >= due_at
    assert not dropped.expired.is_set()


async def test_what_is_closed_expires_no_more() -> None:
    deadlines, request = Deadlines[Request](), Request()
    deadlines.set(request, time.perf_counter() + 0.01)
    assert deadlines.close() == (request,)
    await asyncio.sleep(0.03)
    assert not request.expired.is_set()


async def test_who_slept_has_as_long_again_but_no_longer() -> None:
    async with time_limit(0.5):
        time.sleep(1.0)  # noqa: ASYNC251
        await asyncio.sleep(0.01)  # what came meanwhile is looked at behind the timers
    for slept_s in (0.0, 0.3):
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with time_limit(0.1):
                time.sleep(slept_s)  # noqa: ASYNC251
                await asyncio.sleep(60)


class Names:
    """A resolver that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer = asyncio.get_running_loop().create_future()

    async def look_up(self, host: str, port: int, **_: Any) -> Any:
        self.asked += 1
        return [(0, 0, 0, "", (address, port)) for address in await self.answer]


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names.look_up)
    return names


async def test_who_gives_up_takes_the_answer_from_nobody(names: Names) -> None:
    addresses = Addresses("gpu-box", 80)
    hasty, patient = (asyncio.create_task(addresses.find()) for _ in range(2))
    await asyncio.sleep(0)
    hasty.cancel()
    await asyncio.sleep(0)
    names.answer.set_result(["10.0.0.1", "10.0.0.2", "10.0.0.1"])
    assert await patient == ["10.0.0.1", "10.0.0.2"]
    addresses.prefer("10.0.0.2")
    assert await addresses.find() == ["10.0.0.2", "10.0.0.1"]
    assert names.asked == 1


async def test_a_name_that_was_unknown_is_asked_for_again(names: Names) -> None:
    addresses = Addresses("gpu-box", 80)
    names.answer.set_exception(socket.gaierror(-2, "unknown"))
    for asked in (1, 2):
        with pytest.raises(socket.gaierror):
            await addresses.find()
        await asyncio.sleep(0)
        assert names.asked == asked


async def test_an_address_is_not_looked_up(names: Names) -> None:
    assert await Addresses("::1", 80).find() == ["::1"]
    assert names.asked == 0
