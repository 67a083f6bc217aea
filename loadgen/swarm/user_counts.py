"""How many users of each class a swarm had, for the shares of classes and tasks in `--html`."""

from typing import Any

from locust.runners import MasterRunner


class UserCounts:
    """Remembers the users of a swarm that ends.

    Locust counts them when all requests have drained; ours have left by then, each with its last.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._users: dict[str, int] = {}

    def remember(self) -> None:
        """Locust's `test_stopping`, before anything else hears of it."""
        is_master = isinstance(self._runner, MasterRunner)
        name = "reported_user_classes_count" if is_master else "user_classes_count"
        self._users = dict(getattr(self._runner, name))

    def give_back(self) -> None:
        """Locust's `test_stop`: what it counted itself is replaced."""
        self._runner.final_user_classes_count = self._users
