"""When a host counts as one that does not answer."""

import pytest

from loadgen.stats.silence import HostContact, HostSilence


def looked(
    contacts: list[list[HostContact]],
    metrics: list[bool],
    limit_s: float = 3.0,
    step_s: float = 1.0,
) -> list[bool]:
    """Whether it was too long, by one look after another."""
    silence, found = HostSilence(limit_s), []
    for number, (told, answers) in enumerate(zip(contacts, metrics, strict=True)):
        for contact in told:
            silence.hear(contact)
        found.append(silence.is_too_long(10.0 + number * step_s, answers))
    return found


WAITS = HostContact("0", 5.0, True)
NEVER_HEARD = HostContact("0", None, True)


@pytest.mark.parametrize("contact", [WAITS, NEVER_HEARD])
def test_silence_adds_up_until_it_is_too_long(contact: HostContact) -> None:
    assert looked([[contact]] * 7, [False] * 7) == [*[False] * 4, *[True] * 3]


def test_either_way_of_answering_counts() -> None:
    assert not any(looked([[WAITS]] * 9, [False, False, False, True] * 2 + [False]))
    heard = [[HostContact("0", 7.0 + n, True)] for n in range(9)]
    assert not any(looked(heard, [False] * 9))


def test_what_one_process_hears_holds_for_all() -> None:
    others = [[WAITS, HostContact("1", 7.0 + n, False)] for n in range(9)]
    assert not any(looked(others, [False] * 9))


def test_a_host_that_nobody_waits_for_need_not_answer() -> None:
    assert not any(looked([[HostContact("0", 5.0, False)]] * 9, [False] * 9))


def test_a_pause_of_our_own_is_not_the_hosts_silence() -> None:
    assert looked([[WAITS]] * 3, [False] * 3, limit_s=60.0, step_s=500.0) == [False] * 3


def test_without_a_limit_it_is_never_too_long() -> None:
    assert not any(looked([[WAITS]] * 50, [False] * 50, limit_s=0.0))
