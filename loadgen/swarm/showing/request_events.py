"""Finished requests as Locust's users know them: its `request` event, its statistics."""

from typing import Any

from loadgen.record import RequestRecord
from loadgen.swarm.showing.stats_rows import log_requests

METHOD = "POST"

MOST_TEXTS = 200
"""A host may put a number into each of its errors, and Locust keeps every different one."""


class RequestEvents:
    """Tells Locust of the requests of one swarm, all of them to one endpoint."""

    def __init__(self, environment: Any, endpoint: str) -> None:
        self._environment = environment
        self._endpoint = endpoint
        self._failed = FailedRequests()

    def tell(self, records: list[RequestRecord]) -> None:
        """Fire `request` for each; where only Locust's own statistics would hear of it, those that
        succeeded go there together."""
        listeners = getattr(self._environment.events.request, "_handlers", ())
        if [getattr(each, "__module__", "") for each in listeners] == ["locust.runners"]:
            times_ms = [each.e2e_ms or 0.0 for each in records if each.outcome == "ok"]
            log_requests(self._environment.stats, METHOD, self._endpoint, times_ms)
            records = [each for each in records if each.outcome != "ok"]
        for record in records:
            self._fire(record)

    def _fire(self, record: RequestRecord) -> None:
        """One that was cut off is neither success nor failure."""
        if record.outcome == "cancelled":
            return
        self._environment.events.request.fire(
            request_type=METHOD,
            name=self._endpoint,
            response_time=record.e2e_ms or 0.0,
            response_length=0,
            exception=None if record.outcome == "ok" else self._failed.told_as(record),
            context={"context_id": record.context_id},
        )


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
