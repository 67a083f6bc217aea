"""Why a reply did not become a success, as one tree; each class carries the record's outcome.

StreamFailure
├── ConnectFailed   connect_error  no answer at all: name, refusal, TLS, reset before the headers
├── HttpError       http_error     an answer whose status is not 200
├── TimedOut        timeout        no answer in the time there was
├── Truncated       truncated      a 200 that ended, or was cut, before it was complete
└── Malformed       malformed      a 200 that is no completion stream, or reports an error in it
"""

from typing import ClassVar

from loadgen.record import Outcome


class StreamFailure(Exception):
    """Base of all; `str(failure)` says in one line what was seen."""

    outcome: ClassVar[Outcome]


class ConnectFailed(StreamFailure):
    """The host could not be reached or hung up before any header."""

    outcome = "connect_error"


class HttpError(StreamFailure):
    """The host answered with another status than 200."""

    outcome = "http_error"


class TimedOut(StreamFailure):
    """There was no complete answer in time."""

    outcome = "timeout"


class Truncated(StreamFailure):
    """The reply ended or the connection broke before the reply was complete."""

    outcome = "truncated"


class Malformed(StreamFailure):
    """The reply is no OpenAI completion stream."""

    outcome = "malformed"
