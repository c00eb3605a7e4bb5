"""Whose slices a container is to get: its own, until one of equal slices took them.

kubelet does not say who asks, so containers of equal slices may take each other's. Then the one that went without gets
those of the one that took its own: slices, and the folders made for them, are never in two containers at once.
"""

from __future__ import annotations

from tessera.node.handover.answers import Spot


class Swaps:
    """A permutation of containers; nothing is kept of those that have their own."""

    def __init__(self) -> None:
        self._slices_of: dict[Spot, Spot] = {}

    def of(self, container: Spot) -> Spot:
        """The container whose slices this one gets."""
        return self._slices_of.get(container, container)

    def exchange(self, one: Spot, other: Spot) -> None:
        self._put(one=self.of(other), other=self.of(one), spots=(one, other))

    def forget(self, uid: str) -> None:
        """The pod needs no slices any more: whoever was to get its own gets those that it leaves behind."""
        for gone in [each for each in self._slices_of if each[0] == uid]:
            heir = next((each for each, slices in self._slices_of.items() if slices == gone), None)
            if heir is not None:
                self.exchange(heir, gone)

    def _put(self, *, one: Spot, other: Spot, spots: tuple[Spot, Spot]) -> None:
        for container, slices in zip(spots, (one, other), strict=True):
            if container == slices:
                self._slices_of.pop(container, None)
            else:
                self._slices_of[container] = slices
