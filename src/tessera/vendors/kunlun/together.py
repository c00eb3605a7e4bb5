"""Common to whole Kunlun cards and slices: which cards the links allow together.

The vendors decide which cards are free; the links are in `layout`.
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.card_checks import verdict
from tessera.core.device_rules import Ask
from tessera.core.grants import Grants
from tessera.core.misfits import Misfit, Reason
from tessera.vendors.base import Vendor
from tessera.vendors.drafts import ContainerDraft, PodDraft
from tessera.vendors.kunlun import layout
from tessera.vendors.parts.card_choice import Judge, all_as, judge_all, pays_together

CARD_MEMORY = 98304
"""MiB of a whole card"""
ONLY_COUNTS = "Kunlun cards are given out as 1, 2, 4 or 8 to a container"

USE_UUIDS = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
AVOID_UUIDS = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")


def fit_layout(rules: Vendor, ask: Ask, judge: Judge) -> Grants | Misfit:
    """Among the cards that pass one by one, those that the layout allows together."""
    fitting, refused = judge_all(ask, judge)
    count = ask.request.count
    if count in layout.COUNTS and len(fitting) < count:
        return verdict(rules, ask, refused, taken=len(fitting))
    seat = layout.seats([card.device for card in ask.cards])
    by_seat = {seat[card.device.uuid]: grant for card, grant in fitting}
    chosen = layout.choose(count, list(by_seat))
    if chosen is None:
        misfit = verdict(rules, ask, [*refused, *all_as(Reason.NUMA_NOT_FIT, fitting, asked=count)])
        return misfit if count in layout.COUNTS else replace(misfit, detail=ONLY_COUNTS)
    grants = tuple(by_seat[place] for place in chosen)
    if not pays_together(ask.room, grants):
        return verdict(rules, ask, [*refused, *all_as(Reason.QUOTA_NOT_FIT, fitting, asked=count)])
    return grants


def warn_of_count(container: ContainerDraft, pod: PodDraft, name: str) -> None:
    count = container.amount(name, least=1)
    if isinstance(count, int) and count not in layout.COUNTS:
        pod.warn(f"{name}: {count} will never be placed: {ONLY_COUNTS}")
