"""A scarce link: schedulers on a counted clock, rates over time, the proxy over real sockets."""

import asyncio
import signal
import statistics
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from kv_tiers.link import (
    SCHEDULERS,
    ClientFigures,
    LinkProxy,
    LinkReport,
    LinkScheduler,
    LinkSettings,
    RateSchedule,
    TokenBucket,
    WaitingBytes,
    jain_index,
)
from kv_tiers.link import proxy as proxy_module
from kv_tiers.link.report import percentile
from loadgen.cli.main import main

PIECE = 16_000
HEAVY, MESSAGE = 8, 32
"""Clients beside the light one, and pieces of each of their messages."""
EVERY = 60
"""Pieces of the link's time between two messages of the light client, of two pieces."""
BYTES = bytes(range(251)) * 5000


class CountedLink:
    """A link whose clock goes on by the pieces it sends: heavy clients send one message after the
    other, a light one now and then."""

    def __init__(self, scheduler: LinkScheduler, heavy: int = HEAVY) -> None:
        self.scheduler, self.now, self.arrivals = scheduler, 0, 0
        self.queues: dict[str, deque[tuple[int, int]]] = {}
        self.sent: dict[str, int] = {}
        self.waits: dict[str, list[int]] = {"light": []}
        self.heavy = [f"heavy {n}" for n in range(heavy)]

    def add(self, client: str, pieces: int) -> None:
        for _ in range(pieces):
            self.arrivals += 1
            self.queues.setdefault(client, deque()).append((self.arrivals, self.now))

    def step(self) -> None:
        waiting = {
            client: WaitingBytes(PIECE, PIECE * len(queue), len(queue), queue[0][0])
            for client, queue in self.queues.items()
        }
        client = self.scheduler.choose(waiting)
        _, arrived = self.queues[client].popleft()
        self.now += 1
        self.sent[client] = self.sent.get(client, 0) + 1
        if not self.queues[client]:
            del self.queues[client]
            self.waits.setdefault(client, []).append(self.now - arrived)

    def run(self, pieces: int) -> None:
        for _ in range(pieces):
            for client in self.heavy:
                if client not in self.queues:
                    self.add(client, MESSAGE)
            if self.now % EVERY == 0 and "light" not in self.queues:
                self.add("light", 2)
            self.step()


def counted(name: str, pieces: int = 6000) -> CountedLink:
    link = CountedLink(SCHEDULERS[name]())
    link.run(pieces)
    return link


@pytest.mark.parametrize(
    ("name", "least", "most", "even"),
    [
        # All that lay before it: up to a message of each of the others.
        ("fifo", MESSAGE, HEAVY * MESSAGE + 2, 0.9),
        # Two turns of everyone.
        ("drr", 2, 2 * (HEAVY + 1) + 2, 0.99),
        # The others have more; at worst one of them is at its end.
        ("shortest", 2, 2 + 2, 0.5),
        # As many lots as each other client, or somewhat more, each time.
        ("lottery", 6, 3 * (HEAVY + 1), 0.9),
    ],
)
def test_a_light_client_beside_heavy_ones(name: str, least: int, most: int, even: float) -> None:
    link = counted(name)
    wait = statistics.mean(link.waits["light"])
    assert least <= wait <= most
    among_heavy = jain_index([link.sent.get(client, 0) for client in link.heavy])
    assert among_heavy is not None
    assert among_heavy >= even if name != "shortest" else among_heavy < 1


def test_in_turns_the_longest_wait_is_bounded_and_by_lot_it_is_not() -> None:
    waits = {name: statistics.mean(counted(name).waits["light"]) for name in SCHEDULERS}
    assert waits["shortest"] < waits["drr"] < waits["fifo"]
    worst = {name: max(counted(name).waits["light"]) for name in ("drr", "lottery")}
    assert worst["drr"] <= 3 * (HEAVY + 1) < worst["lottery"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_who_starves_beside_a_stream_of_small_messages(name: str) -> None:
    link = CountedLink(SCHEDULERS[name](), heavy=0)
    link.add("large", 100)
    for _ in range(400):
        if "small" not in link.queues:
            link.add("small", 1)
        link.step()
    assert (link.sent.get("large", 0) > 0) is (name != "shortest")


def test_the_weights_of_the_lottery_are_within_a_factor_of_e() -> None:
    lottery, drawn = SCHEDULERS["lottery"](), {"one": 0, "many": 0}
    waiting = {
        "one": WaitingBytes(PIECE, PIECE, 1, 1),
        "many": WaitingBytes(PIECE, PIECE * 10_000, 10_000, 2),
    }
    for _ in range(4000):
        drawn[lottery.choose(waiting)] += 1
    assert drawn["one"] / drawn["many"] == pytest.approx(2.718, rel=0.15)


def test_turns_are_of_bytes_and_not_of_pieces() -> None:
    scheduler = SCHEDULERS["drr"]()
    sizes = {"small": 1000, "large": 16_000}
    sent = dict.fromkeys(sizes, 0)
    waiting = {client: WaitingBytes(size, 10 * size, 10, 1) for client, size in sizes.items()}
    for _ in range(3400):
        client = scheduler.choose(waiting)
        sent[client] += sizes[client]
    assert sent["small"] / sent["large"] == pytest.approx(1, rel=0.02)


def test_a_link_whose_rate_changes(tmp_path: Path) -> None:
    file = tmp_path / "rates"
    file.write_text("0 8   # a megabyte a second\n2 0\n\n5 16\n")
    schedule = RateSchedule.read(file)
    assert schedule == RateSchedule((0, 2, 5), (1e6, 0, 2e6))
    assert schedule.through_s(0, 1e6) == 1
    assert schedule.through_s(1.5, 0.5e6) == 2
    assert schedule.through_s(1.5, 1.5e6) == 5.5
    assert schedule.through_s(3, 2e6) == 6
    assert schedule.through_s(100, 2e6) == 101
    assert schedule.bytes_between(1, 6) == 3e6

    bucket = TokenBucket(RateSchedule.fixed(8), burst_s=0.1)
    assert bucket.send(0, 100_000) == pytest.approx(0.1)
    assert bucket.send(0, 100_000) == pytest.approx(0.2), "one after the other"
    assert bucket.send(10, 50_000) == 10, "what it saved while it was idle"
    assert bucket.send(10, 100_000) == pytest.approx(10.05)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "begins at second 0"),
        ("1 5", "begins at second 0"),
        ("0 5\n0 6", "go up"),
        ("0 5\n3 -1\n4 1", "0 or more"),
        ("0 5\n3 0", "give one above 0"),
        ("0 5\nfast", "line 2 of .* is not"),
        ("0 inf", "finite"),
    ],
)
def test_a_schedule_that_cannot_be_is_told(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "rates").write_text(text)
    with pytest.raises(ValueError, match=told):
        RateSchedule.read(tmp_path / "rates")


def test_exchanges_are_from_a_request_to_the_last_byte_of_its_reply() -> None:
    figures = ClientFigures("one")
    for begun, over in ((1.0, 1.5), (3.0, 3.1), (4.0, 6.0)):
        figures.arrived(begun, 10, True)
        figures.arrived(begun + 0.01, 10, True)
        figures.delivered(begun + 0.02, 20, True)
        figures.arrived(begun + 0.03, 1000, False)
        figures.delivered(over - 0.01, 400, False)
        figures.delivered(over, 600, False)
    assert figures.times_s() == pytest.approx([0.1, 0.5, 2.0])
    assert (figures.up_bytes, figures.down_bytes) == (60, 3000)
    assert percentile(figures.times_s(), 0.5) == pytest.approx(0.5)
    assert percentile(figures.times_s(), 0.99) == pytest.approx(np.quantile([0.1, 0.5, 2.0], 0.99))
    lines = LinkReport((figures,), 0.25, 1.0).lines
    assert lines[1].split() == ["one", "3", "0.00", "500.0", "1970.0"]
    assert lines[-1] == "Jain's index 1.000, utilisation up 25.0%, down 100.0%"


def test_an_even_share_and_one_that_has_all() -> None:
    assert jain_index([5, 5, 5]) == pytest.approx(1)
    assert jain_index([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain_index([]) is None


@asynccontextmanager
async def sender() -> AsyncIterator[int]:
    """Answers each line, a number, with as many bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(BYTES[: int(line)])
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def fetched(port: int, size: int, times: int = 1) -> list[float]:
    """Seconds of each of several exchanges on one connection; what comes is what was asked for."""
    clock = asyncio.get_running_loop().time
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took = []
    for _ in range(times):
        begun = clock()
        writer.write(b"%d\n" % size)
        assert await reader.readexactly(size) == BYTES[:size]
        took.append(clock() - begun)
    writer.write_eof()
    assert await reader.read() == b"", "the end goes through, too"
    writer.close()
    return took


def opened(
    port: int,
    rate_mbit: float,
    scheduler: Callable[[], LinkScheduler],
    ports: int = 1,
    **more: float,
) -> LinkProxy:
    settings = LinkSettings(RateSchedule.fixed(rate_mbit), scheduler, **more)  # type: ignore[arg-type]
    return LinkProxy(settings, [0] * ports, "127.0.0.1", port)


@pytest.mark.parametrize("name", SCHEDULERS)
async def test_the_proxy_sends_all_at_its_rate_and_no_faster(name: str) -> None:
    size, clients = 200_000, 3
    async with sender() as port, opened(port, 16, SCHEDULERS[name]) as proxy:
        took = await asyncio.gather(*(fetched(proxy.ports[0], size) for _ in range(clients)))
        least = (clients * size) / 2e6 - 0.02
        assert max(each[0] for each in took) >= least
        report = proxy.report()
    assert [each.down_bytes for each in report.clients] == [size] * clients
    assert all(each.times_s()[-1] <= proxy.clock() for each in report.clients)
    assert report.jain is not None
    assert len(report.lines) == clients + 2


@pytest.mark.parametrize("name", SCHEDULERS)
async def test_on_a_counted_clock_the_proxy_uses_all_of_its_link(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but sending takes time there, whatever the machine takes for it."""
    size, clients, now_s = 200_000, 3, [0.0]

    async def counted_until(at_s: float, clock: Callable[[], float]) -> None:
        now_s[0] = max(now_s[0], at_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(proxy_module, "_sleep_until", counted_until)
    monkeypatch.setattr(LinkProxy, "clock", lambda self: now_s[0])
    async with sender() as port, opened(port, 16, SCHEDULERS[name]) as proxy:
        await asyncio.gather(*(fetched(proxy.ports[0], size) for _ in range(clients)))
        report = proxy.report()
    assert report.utilisation_down == pytest.approx(1, abs=0.001)
    assert now_s[0] == pytest.approx(clients * size / 2e6, abs=0.001)


async def test_a_light_client_waits_less_in_turns_than_first_come_first_served() -> None:
    waits = {}
    for name in ("fifo", "drr"):
        async with sender() as port, opened(port, 40, SCHEDULERS[name], ports=2) as proxy:
            heavy, light = proxy.ports
            busy = [asyncio.create_task(fetched(heavy, 250_000, 1000)) for _ in range(6)]
            await asyncio.sleep(0.1)
            waits[name] = statistics.median(await fetched(light, 2000, 5))
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            assert [each.name for each in proxy.report().clients] == [
                f"port {heavy}",
                f"port {light}",
            ]
    assert waits["drr"] < waits["fifo"] / 3


async def test_latency_is_added_both_ways_and_jitter_keeps_the_order() -> None:
    async with (
        sender() as port,
        opened(port, 1000, SCHEDULERS["fifo"], latency_ms=40, jitter_ms=20) as proxy,
    ):
        (took,) = await fetched(proxy.ports[0], 300_000)
    assert took >= 0.08


async def test_a_client_that_leaves_and_a_store_that_is_gone_end_their_connections() -> None:
    async with sender() as port, opened(port, 1, SCHEDULERS["drr"]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[0])
        writer.write(b"1000000\n")
        await reader.read(1)
        writer.transport.abort()
        async with asyncio.timeout(20):
            await fetched(proxy.ports[0], 100)
    async with opened(port, 1, SCHEDULERS["drr"]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[0])
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()


async def test_what_a_connection_that_is_cut_still_had_is_wanted_no_more() -> None:
    """All connections to a port are one client: the time of the others counts on."""
    async with sender() as port, opened(port, 8, SCHEDULERS["drr"], ports=2) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[0])
        writer.write(b"100000\n")
        await reader.read(1)
        writer.transport.abort()
        await asyncio.gather(*(fetched(each, 400_000) for each in proxy.ports))
        report = proxy.report()
    for each in report.clients:
        assert (each.up_bytes + each.down_bytes) / each.wanted_s < 1.1e6, "the rate of the link"
    assert report.jain is not None
    assert report.jain > 0.8


async def test_what_a_receiver_does_not_read_stays_with_its_sender() -> None:
    async with sender() as port, opened(port, 10_000, SCHEDULERS["fifo"]) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.ports[0])
        writer.write(b"1000000\n" * 40)
        writer.write_eof()
        await asyncio.sleep(0.5)
        assert 0 < proxy.report().clients[0]._under_way < 2 * proxy_module.MOST_WAITING_BYTES
        assert len(await reader.read()) == 40_000_000
        writer.close()


def test_a_latency_that_cannot_be_is_told() -> None:
    with pytest.raises(ValueError, match="latency_ms -1"):
        LinkSettings(RateSchedule.fixed(1), SCHEDULERS["fifo"], latency_ms=-1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_command_tells_what_clients_had_when_it_is_interrupted(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "rates").write_text("0 80\n1 160\n")
    async with sender() as port:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.cli.main", "kv", "link", "--listen", "0"),
            *("--to", f"127.0.0.1:{port}", "--schedule", str(tmp_path / "rates")),
            *("--scheduler", "drr", "--latency-ms", "1"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        begun = (await process.stdout.readline()).decode()
        assert begun.endswith(f"to 127.0.0.1:{port}, drr, until Ctrl-C\n")
        await fetched(int(begun.split()[4]), 100_000, 3)
        process.send_signal(number)
        told = (await process.stdout.read()).decode().splitlines()
        assert await process.wait() == (0 if number == signal.SIGINT else 128 + number)
    assert told[0].split() == ["client", "exchanges", "MB", "p50", "ms", "p99", "ms"]
    assert told[1].split()[2:4] == ["3", "0.30"]
    assert told[2].startswith("Jain's index 1.000, utilisation up")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--to", "here", "--rate-mbit", "1"], "--to here is no address: give HOST:PORT"),
        (["--to", "h:²", "--rate-mbit", "1"], "is no address"),
        (["--to", "h:99999", "--rate-mbit", "1"], "is no address"),
        (
            ["--to", "h:1", "--rate-mbit", "1", *["--listen", "9"] * 2],
            "--listen 9: each port is one",
        ),
        (
            ["--to", "localhost:9", "--rate-mbit", "1", "--listen", "9"],
            "--to localhost:9 is the link itself",
        ),
        (["--to", "h:1"], "either --rate-mbit or --schedule"),
        (["--to", "h:1", "--rate-mbit", "1", "--schedule", "x"], "either --rate-mbit or"),
        (["--to", "h:1", "--schedule", "/none"], "cannot read the schedule /none"),
        (["--to", "h:1", "--rate-mbit", "0"], "give one above 0"),
        (["--to", "h:1", "--rate-mbit", "1", "--jitter-ms", "-1"], "jitter_ms -1"),
    ],
)
def test_the_command_refuses_in_a_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kv", "link", "--listen", "0", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
