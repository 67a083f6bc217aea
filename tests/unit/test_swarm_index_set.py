"""IndexSet is a set."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.swarm.sending.request_sender import IndexSet

OPERATIONS = st.lists(st.tuples(st.sampled_from(["add", "discard"]), st.integers(0, 300)))


@given(OPERATIONS)
def test_behaves_like_a_set(operations: list[tuple[str, int]]) -> None:
    ours, theirs = IndexSet(), set[int]()
    for name, index in operations:
        getattr(ours, name)(index)
        getattr(theirs, name)(index)
    assert {index for index in range(310) if index in ours} == theirs
