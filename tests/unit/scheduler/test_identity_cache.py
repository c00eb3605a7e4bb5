from __future__ import annotations

from tessera.scheduler.identity_cache import IdentityCache


def test_a_result_is_made_once_for_the_same_objects_and_again_for_equal_ones() -> None:
    made: list[tuple[object, ...]] = []
    cache = IdentityCache(lambda *objects: made.append(objects) or len(made), most=2)  # type: ignore[func-returns-value]
    one, other = ["a"], ["a"]
    assert [cache.of(one, None), cache.of(one, None), cache.of(other, None)] == [1, 1, 2]
    assert cache.of(one, other) == 3, "and for another combination"


def test_the_oldest_leaves_and_no_later_object_is_taken_for_one_that_is_kept() -> None:
    cache = IdentityCache(lambda found: list(found), most=2)
    results = [cache.of([number]) for number in range(100)]
    assert results == [[number] for number in range(100)]
    first, kept, last = [1], [2], [3]
    found = [cache.of(each) for each in (first, kept, last)]
    assert [
        cache.of(each) is result for each, result in zip((kept, last, first), (*found[1:], found[0]), strict=True)
    ] == [
        True,
        True,
        False,
    ]
