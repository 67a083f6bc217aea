"""Failures as Locust counts them, of a bounded number of kinds."""

from loadgen.record import RequestRecord

MOST_TEXTS = 200
"""A host may put a number into each of its errors, and Locust keeps every different one."""


class RequestFailed(Exception):
    """What Locust's Failures tab groups by: the outcome and the host's words."""


class FailedRequests:
    """Errors in their own words while few of them differ, then by their outcome."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def told_as(self, record: RequestRecord) -> RequestFailed:
        """What a failed request is counted under."""
        text = f"{record.outcome}: {record.error}"
        if text not in self._known:
            if len(self._known) >= MOST_TEXTS:
                return RequestFailed(f"{record.outcome}: another error, see requests.csv")
            self._known.add(text)
        return RequestFailed(text)
