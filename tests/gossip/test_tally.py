"""Sets of node ids: exact while small, never a wrong no, and the same whatever the order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.gossip.tally import Shape, Tally

SMALL = Shape(exact_ids=4, lanes=4, precision=6)
ids = st.frozensets(st.integers(0, 30).map(lambda number: f"n{number}"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(ids, ids, ids)
def test_union_and_covers(first: frozenset[str], second: frozenset[str], third: frozenset[str]) -> None:
    one, two, three = (Tally.of(each, SMALL) for each in (first, second, third))
    both = one.union(two)
    assert both.same(Tally.of(first | second, SMALL))
    assert both.same(two.union(one))
    assert both.union(three).same(one.union(two.union(three)))
    assert both.covers(one)
    assert both.covers(two)
    assert one.union(one) is one
    assert both.union(one) is both
    if second <= first:
        assert one.covers(two)
    elif one.ids is not None:
        assert not one.covers(two), "a listed set never covers what is not in it"
    assert Tally.from_wire(one.wire(), SMALL).same(one)


def test_a_set_is_listed_up_to_its_bound_and_sketched_beyond() -> None:
    assert Tally.of(f"n{number}" for number in range(64)).ids is not None
    many = Tally.of(f"n{number}" for number in range(65))
    assert many.ids is None
    assert len(many.sketches) == 4
    assert len({sketch.to_bytes() for sketch in many.sketches}) == 4, "each lane has a hash of its own"
    assert 55 < many.estimate() < 75
    assert many.holds("n3")
    assert not Tally.of(f"n{number}" for number in range(64)).covers(many)
