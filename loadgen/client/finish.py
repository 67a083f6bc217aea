"""How hosts say that a reply has ended, and whether it is whole then."""

import re
from collections.abc import Mapping
from functools import lru_cache

from loadgen.client.failures import error_message

_BETWEEN_WORDS = re.compile(r"[\W_]+")
_NO_FINISHES = frozenset(
    {"", "null", "none", "nil", "undefined", "notfinished", "unspecified", "inprogress"}
)
"""Texts by which hosts say that a choice goes on."""

GOOD_FINISHES = frozenset(
    {
        *("stop", "stopped", "stopsequence", "stoptoken", "stopstring", "stopstr", "stopword"),
        *("eos", "eostoken", "word", "end", "endturn", "endofturn", "endoftext", "normal"),
        *("length", "maxlength", "lengthlimit", "limit", "tokenlimit", "modellength"),
        *("maxtokens", "maxoutputtokens", "maxnewtokens", "maxcompletiontokens"),
        *("contextlength", "contextlengthexceeded", "modelcontextwindowexceeded"),
        *("toolcall", "toolcalls", "tooluse", "functioncall", "functioncalls"),
        *("contentfilter", "contentfiltered", "repetition"),
        *("complete", "completed", "finished", "done"),
    }
)
"""Finish reasons of a reply that is whole, without capitals and what parts words."""

_GIVEN_UP = re.compile(
    r"abort|err|cancel|time|fail|kill|evict|preempt|disconnect|insufficient|interrupt|overload"
)


def finish_of(reason: object) -> str | None:
    """A finish reason in one word, None where the choice goes on: some hosts send an object."""
    if isinstance(reason, Mapping):
        reason = reason.get("type") or reason.get("reason") or error_message(reason)
    if isinstance(reason, list):
        reason = reason[0] if reason else None
    return None if not reason or _squeezed(str(reason)) in _NO_FINISHES else str(reason)


def words_beside(reason: object) -> list[str]:
    """What an object that is a finish reason says in other fields than its name."""
    fields = reason if isinstance(reason, Mapping) else {}
    return [error_message(fields[name]) for name in ("message", "error") if fields.get(name)]


@lru_cache(maxsize=64)
def is_good_finish(reason: str | None) -> bool:
    """Whether a reply with this finish reason is whole."""
    return reason is not None and _squeezed(reason) in GOOD_FINISHES


def finish_words(reason: str | None) -> str:
    """What a finish reason says that is no good one."""
    if _GIVEN_UP.search(_squeezed(reason or "")):
        return f"the engine gave up: finish reason {reason!r}"
    return f"unknown finish reason {reason!r}: it does not say that the reply is whole"


def _squeezed(reason: str) -> str:
    """As `FinishReason.STOP`, `FINISH_REASON_STOP` and `Stop` say the same."""
    return _BETWEEN_WORDS.sub("", reason).lower().removeprefix("finishreason")
