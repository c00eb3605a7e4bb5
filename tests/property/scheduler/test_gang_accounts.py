"""Whatever gangs of a namespace do, what they hold without being bound stays within their account."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tessera.scheduler.features.gangs.accounts import Span
from tests.unit.scheduler.test_gang_accounts import CARDS, FULL, SHARE, Accounts


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
    accounts, held, unbound = Accounts(), list[Span](), list[tuple[float, float, float]]()

    def end(span: Span, *, bound: bool) -> None:
        held.remove(span)
        accounts.close("a", span, bound=bound)
        if not bound:
            unbound.append((span.since, accounts.now, span.cards))

    look = 15.0
    for seconds, what, cards, which in steps:
        until = accounts.now + seconds
        while look <= until:
            accounts.now, look = look, look + 15.0
            while held and accounts.overdrawn():
                end(held[0], bound=False)
        accounts.now = until
        if what == "open":
            held.append(accounts.open("a", cards))
            if not accounts.pays_for("a"):
                end(held[-1], bound=False)
        elif held:
            end(held[which % len(held)], bound=what == "bind")
    while held:
        end(held[0], bound=False)
    moments = sorted({moment for began, ended, _ in unbound for moment in (began, ended)})
    for i, first in enumerate(moments):
        for last in moments[i:]:
            used = sum(cards * max(0.0, min(ended, last) - max(began, first)) for began, ended, cards in unbound)
            assert used <= FULL + SHARE * CARDS * (last - first) + 1e-6
