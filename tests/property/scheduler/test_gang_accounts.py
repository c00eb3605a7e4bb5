"""Whatever gangs of a namespace do, what they hold without being bound stays within their account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.gangs import CARDS, FULL, SHARE, Accounts


@given(
    st.lists(
        st.tuples(
            st.floats(0, 60, allow_nan=False),
            st.sampled_from(["open", "bind", "release"]),
            st.floats(0.1, CARDS, allow_nan=False),
            st.integers(0, 7),
        ),
        max_size=60,
    )
)
def test_in_no_time_more_is_held_without_a_bind_than_an_account_and_its_refill(
    steps: list[tuple[float, str, float, int]],
) -> None:
    """Whatever is held is released as soon as the account does not pay for it, at looks that are 15 s apart."""
    accounts, held, unbound = Accounts(), dict[int, tuple[float, float]](), list[tuple[float, float, float]]()

    def end(key: int, *, bound: bool) -> None:
        since, cards = held.pop(key)
        accounts.close(key, bound=bound)
        if not bound:
            unbound.append((since, accounts.now, cards))

    look = 15.0
    for number, (seconds, what, cards, which) in enumerate(steps):
        until = accounts.now + seconds
        while look <= until:
            accounts.now, look = look, look + 15.0
            while held and accounts.overdrawn():
                end(next(iter(held)), bound=False)
        accounts.now = until
        if what == "open":
            accounts.open("a", number, cards)
            held[number] = accounts.now, cards
            if not accounts.pays_for("a"):
                end(number, bound=False)
        elif held:
            end(list(held)[which % len(held)], bound=what == "bind")
    while held:
        end(next(iter(held)), bound=False)
    moments = sorted({moment for began, ended, _ in unbound for moment in (began, ended)})
    for i, first in enumerate(moments):
        for last in moments[i:]:
            used = sum(cards * max(0.0, min(ended, last) - max(began, first)) for began, ended, cards in unbound)
            assert used <= FULL + SHARE * CARDS * (last - first) + 1e-6
