"""The engine alone: a native uvloop thread beside gevent's hub, without Locust.

Each test is a process of its own, because gevent patches the whole process.
"""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PRELUDE = """
from gevent import monkey
monkey.patch_all()
import asyncio, contextlib, faulthandler, logging, os, signal, sys, threading, time, traceback
import gevent
import psutil
from loadgen.swarm.engine import Engine

engine = Engine.of_process()
"""


def lines(folder: Path, script: str) -> list[str]:
    """What the script prints, standard error included; it must end by itself with 0."""
    file = folder / "script.py"
    file.write_text(PRELUDE + dedent(script) + "\nEngine.close_process()\n")
    done = subprocess.run(
        [sys.executable, str(file)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_posts_reach_the_hub_in_order_and_in_batches(tmp_path: Path) -> None:
    script = """
        seen, drains, drain = [], [], engine.drain
        engine.drain = lambda: (drains.append(1), drain())

        async def post_many():
            for number in range(1000):
                engine.post(lambda number=number: seen.append((number, os.getpid())))
            engine.post(lambda: seen.append(threading.get_native_id() == os.getpid()))

        engine.run(post_many())
        print(seen[-1], [number for number, _ in seen[:-1]] == list(range(1000)), len(drains) < 5)
        """
    assert lines(tmp_path, script) == ["True True True"]


def test_a_post_that_is_not_urgent_arrives_without_another_event(tmp_path: Path) -> None:
    script = """
        arrived = gevent.event.Event()

        async def post_one():
            engine.post(arrived.set)

        engine.call(lambda: engine.loop.create_task(post_one()))
        print(arrived.wait(30))
        """
    assert lines(tmp_path, script) == ["True"]


def test_a_post_that_raises_does_not_hold_up_others(tmp_path: Path) -> None:
    script = """
        async def post_two():
            engine.post(lambda: 1 / 0)
            engine.post(lambda: print("the other"))

        engine.run(post_two())
        """
    output = lines(tmp_path, script)
    assert "ZeroDivisionError: division by zero" in output
    assert output[-1] == "the other"


def test_run_returns_values_and_raises_with_the_true_traceback(tmp_path: Path) -> None:
    script = """
        async def double(number):
            await asyncio.sleep(0.01)
            return 2 * number

        async def explode():
            await asyncio.sleep(0.01)
            raise ValueError("boom")

        print(engine.run(double(21)))
        try:
            engine.run(explode())
        except ValueError as error:
            print(error, traceback.extract_tb(error.__traceback__)[-1].name)
        """
    assert lines(tmp_path, script) == ["42", "boom explode"]


def test_run_blocks_its_greenlet_and_not_the_hub(tmp_path: Path) -> None:
    script = """
        async def wait_for(event):
            while not event.is_set():
                await asyncio.sleep(0.01)
            return "released by the hub"

        released = gevent.event.Event()
        gevent.spawn_later(0.05, released.set)
        print(engine.run(wait_for(released)))
        """
    assert lines(tmp_path, script) == ["released by the hub"]


def test_cancel_runs_finally_blocks_and_raises_in_who_waits(tmp_path: Path) -> None:
    script = """
        async def sleep_long(name):
            try:
                print(name, "begins")
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                print(name, "cleans up")

        flight = engine.start(sleep_long("first"))
        engine.run(asyncio.sleep(0))
        print("joined", flight.join(0.01))
        flight.cancel()
        print("joined", flight.join(30))
        try:
            flight.result()
        except asyncio.CancelledError:
            print("cancelled")
        waiting = gevent.spawn(engine.run, sleep_long("second"))
        gevent.sleep(0)
        engine.run(asyncio.sleep(0))
        waiting.kill()
        engine.run(asyncio.sleep(0.05))
        engine.start(sleep_long("never begun")).cancel()
        engine.run(asyncio.sleep(0.05))
        """
    assert lines(tmp_path, script) == [
        "first begins",
        "joined False",
        "first cleans up",
        "joined True",
        "cancelled",
        "second begins",
        "second cleans up",
    ]


def test_two_hundred_greenlets_run_two_hundred_coroutines_at_once(tmp_path: Path) -> None:
    script = """
        async def meet(number):
            await barrier.wait()
            return number

        barrier = asyncio.Barrier(200)  # nobody passes it unless all are under way
        greenlets = [gevent.spawn(lambda n=n: engine.run(meet(n))) for n in range(200)]
        print(len(gevent.joinall(greenlets, timeout=30)))
        print(sum(greenlet.value for greenlet in greenlets))
        """
    assert lines(tmp_path, script) == ["200", str(sum(range(200)))]


def test_a_process_has_one_engine_and_a_fork_of_it_another(tmp_path: Path) -> None:
    script = """
        Engine.close_process()
        starting = [gevent.spawn(Engine.of_process) for _ in range(20)]
        engines = [greenlet.get() for greenlet in starting]
        print(len(set(engines)), flush=True)
        if (pid := gevent.fork()) == 0:
            child = Engine.of_process()
            print(child in engines, child.run(asyncio.sleep(0, "child")), flush=True)
            Engine.close_process()
            sys.exit(0)
        print(os.waitpid(pid, 0)[1], engines[0].run(asyncio.sleep(0, "parent")))
        """
    assert lines(tmp_path, script) == ["1", "False child", "0 parent"]


def test_close_cancels_what_runs_and_may_be_repeated(tmp_path: Path) -> None:
    script = """
        async def numbers():
            try:
                yield 1
            finally:
                print("generator closed")

        async def sleep_long():
            generator = numbers()
            await anext(generator)
            keep.append(generator)
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                print("cleaned up")

        keep = []
        engine.start(sleep_long())
        engine.run(asyncio.sleep(0.05))
        closing = [gevent.spawn(engine.close) for _ in range(2)]
        gevent.joinall(closing, raise_error=True)
        engine.close()
        print(engine.loop.is_closed(), "closed")
        Engine.close_process()
        Engine.close_process()
        """
    assert lines(tmp_path, script) == ["cleaned up", "generator closed", "True closed"]


def test_both_threads_may_log_at_once(tmp_path: Path) -> None:
    # With gevent's locks between them, a greenlet waits for ever here.
    script = """
        logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
        log = logging.getLogger("both")

        async def log_on_loop():
            for number in range(3000):
                log.info("loop %d", number)
                if number % 50 == 0:
                    await asyncio.sleep(0)

        def log_on_hub():
            for number in range(2000):
                log.info("hub %d", number)
                if number % 20 == 0:
                    gevent.sleep(0)

        flight = engine.start(log_on_loop())
        with gevent.Timeout(30):
            gevent.joinall([gevent.spawn(log_on_hub) for _ in range(2)])
            flight.result()
        """
    output = lines(tmp_path, script)
    assert [line for line in output if line.startswith("loop")] == [
        f"loop {number}" for number in range(3000)
    ]
    assert len(output) == 3000 + 2 * 2000


def test_an_exit_in_a_coroutine_is_its_own_and_leaves_the_loop(tmp_path: Path) -> None:
    script = """
        async def leave():
            await asyncio.sleep(0.01)
            sys.exit(7)

        flight = engine.start(asyncio.sleep(0.1, "others go on"))
        with gevent.Timeout(30):
            try:
                engine.run(leave())
            except SystemExit as exit:
                print("exit", exit.code)
            print(flight.result())
        """
    assert lines(tmp_path, script) == ["exit 7", "others go on"]


def test_ctrl_c_amid_results_is_the_main_greenlets_and_results_still_arrive(
    tmp_path: Path,
) -> None:
    script = """
        async def interrupt():
            engine.post(lambda: signal.raise_signal(signal.SIGINT))
            await asyncio.sleep(3600)

        flight = engine.start(interrupt())
        with gevent.Timeout(30):
            try:
                flight.result()
            except KeyboardInterrupt:
                print("interrupted")
            flight.cancel()
            print(flight.join())
        """
    assert lines(tmp_path, script) == ["interrupted", "True"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors as Linux does")
def test_jobs_in_threads_return_raise_and_leave_nothing_open(tmp_path: Path) -> None:
    script = """
        def job(number):
            time.sleep(0.001)  # gevent's, which makes a hub in this thread
            return number

        async def many_jobs():
            for _ in range(10):
                jobs = [asyncio.to_thread(job, number) for number in range(10)]
                assert await asyncio.gather(*jobs) == list(range(10))
            try:
                await asyncio.to_thread(int, "no number")
            except ValueError as error:
                print(error)

        before = psutil.Process().num_fds()
        engine.run(many_jobs())
        print(psutil.Process().num_fds() - before < 50)
        """
    assert lines(tmp_path, script) == [
        "invalid literal for int() with base 10: 'no number'",
        "True",
    ]


def test_a_loop_that_is_held_is_told_with_the_line_that_holds_it(tmp_path: Path) -> None:
    script = """
        import loadgen.swarm.engine as module

        module.HELD_S = engine._patience_s = 0.3

        async def block():
            time.sleep(4)

        async def numbers():
            return 7

        engine.run(asyncio.sleep(0.7))
        print(engine.held_at())
        flight = engine.start(block())
        try:
            engine.run(numbers())
        except module.LoopHeld as held:
            print(held)
        print(engine.end(numbers()) is not None)
        flight.result()
        print(engine.run(numbers()), engine.held_at())
        """
    first, held, *last = lines(tmp_path, script)
    assert first == "None"
    assert held.startswith(f"block ({tmp_path / 'script.py'}:")
    assert "blocks the event loop" in held
    assert last == ["True", "7 None"]
