"""What the mock server notes of what it saw, in `time.perf_counter_ns()`."""

from dataclasses import dataclass, field

LATE_NS = 10_000_000


@dataclass(slots=True)
class Log:
    """What the server saw: `replies` maps a number to its receipt and its writes.

    `late_ns` is how long after it was due each paced event was written, `opening` the replies that
    were the first of their connection.
    """

    first_post_ns: int = 0
    done_ns: list[int] = field(default_factory=list)
    replies: dict[int, list[int]] = field(default_factory=dict)
    late_ns: list[int] = field(default_factory=list)
    opening: list[int] = field(default_factory=list)

    def received(self, now_ns: int, paced: bool, is_first: bool = False) -> int:
        """Note a request; returns the number of its reply, 0 for one without delay."""
        self.first_post_ns = self.first_post_ns or now_ns
        if not paced:
            return 0
        reply = len(self.replies) + 1
        self.replies[reply] = [now_ns]
        if is_first:
            self.opening.append(reply)
        return reply

    def spoke(self, reply: int, now_ns: int, due_ns: int) -> None:
        """Note a paced event."""
        self.replies[reply].append(now_ns)
        self.late_ns.append(now_ns - due_ns)

    def done(self, now_ns: int) -> None:
        """Note that a whole reply is written."""
        self.done_ns.append(now_ns)


@dataclass(slots=True)
class Counts:
    """What the server saw in numbers: requests received, whole replies, and paced events, of which
    the latest was `worst_late_ns` after it was due, and `late` more than `LATE_NS`.
    """

    first_post_ns: int = 0
    requests: int = 0
    replies: int = 0
    events: int = 0
    late: int = 0
    worst_late_ns: int = 0

    def received(self, now_ns: int, paced: bool, is_first: bool = False) -> int:
        """Note a request; returns the number of its reply."""
        self.first_post_ns = self.first_post_ns or now_ns
        self.requests += 1
        return self.requests

    def spoke(self, reply: int, now_ns: int, due_ns: int) -> None:
        """Note a paced event."""
        self.events += 1
        if now_ns - due_ns > LATE_NS:
            self.late += 1
            self.worst_late_ns = max(self.worst_late_ns, now_ns - due_ns)

    def done(self, now_ns: int) -> None:
        """Note that a whole reply is written."""
        self.replies += 1
