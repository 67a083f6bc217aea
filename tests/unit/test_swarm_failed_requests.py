from loadgen.record import RequestRecord
from loadgen.swarm.showing.request_events import MOST_TEXTS, FailedRequests


def record(error: str, outcome: str = "http_error") -> RequestRecord:
    known = dict.fromkeys(RequestRecord.__dataclass_fields__)
    return RequestRecord(**{**known, "outcome": outcome, "error": error})  # type: ignore[arg-type]


def test_errors_with_a_number_in_each_are_not_kept_for_ever() -> None:
    failed = FailedRequests()
    told = [str(failed.told_as(record(f"no room for {n} tokens"))) for n in range(5000)]
    assert told[0] == "http_error: no room for 0 tokens"
    assert len(set(told)) == MOST_TEXTS + 1
    assert told[-1] == "http_error: another error, see requests.csv"
    assert str(failed.told_as(record("no room for 7 tokens"))) == told[7]
    assert str(failed.told_as(record("gone", "timeout"))).startswith("timeout: another")
