"""Ctrl-C goes to Locust's main greenlet, whichever one happens to run."""

import signal
from functools import partial

import gevent


def interrupt_main_greenlet() -> None:
    """Have SIGINT and SIGHUP raise KeyboardInterrupt in the main greenlet alone.

    Python would raise it in whatever greenlet runs at that moment, which then dies with a
    traceback while Locust goes on. A second signal while the first is dealt with does nothing.
    """
    main = gevent.get_hub().parent
    sent: list[int] = []

    def on_signal(number: int) -> None:
        if not sent:
            sent.append(number)
            gevent.kill(main, KeyboardInterrupt())

    for number in (signal.SIGINT, signal.SIGHUP):
        gevent.signal_handler(number, partial(on_signal, number))
