"""The selectors of claims and of their classes: whose the devices of a class are, and which selectors are served.

Tenants write them, so there is a limit to what is read for one pod; what one of them costs on devices is the business
of `wire.cel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tessera.wire.cel import Selector, compile_selector
from tessera.wire.cel.values import Failed, Value
from tessera.wire.claim_spec import ClaimSpec, DeviceClass, DeviceSelector, ExactRequest
from tessera.wire.quotes import quoted
from tessera.wire.resource_api import DRIVER

MAX_SELECTOR_TEXT, MAX_SELECTOR_PARTS = 16 << 10, 1_000
"""characters, and parts of expressions, in all different selectors of a pod's claims and their classes: reading them
takes up to 20 ms"""
OTHER_DRIVER = "other.invalid"


def is_our_class(device_class: DeviceClass) -> bool:
    """Whether devices of our driver may be of this class, and no others. A class that cannot be read is not."""
    selectors = [_compiled(each) for each in device_class.spec.selectors or ()]
    known = [each for each in selectors if isinstance(each, Selector)]
    if len(known) < len(selectors):
        return False
    ours, others = _Unknown(DRIVER), _Unknown(OTHER_DRIVER)
    may_be_ours = all(each.evaluate(ours) is not False for each in known)
    return may_be_ours and any(each.evaluate(others) is False for each in known)


class _Unknown(dict[str, Value]):
    """A device of which only the driver is known: whatever needs more has no value."""

    def __init__(self, driver: str) -> None:
        super().__init__(driver=driver)

    def __missing__(self, key: str) -> Value:
        raise Failed(f"device.{key} is not known")


def _compiled(selector: DeviceSelector) -> Selector | str:
    return compile_selector(selector.cel.expression) if selector.cel is not None else "a selector that is not CEL"


class ClaimSelectors:
    """The selectors of a claim, or of all claims of a pod, read one by one: what is too much is refused before all of
    it is read."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        """by text"""
        self._fault = ""

    def read(self, device_class: DeviceClass, asked: ExactRequest) -> tuple[str, ...] | str:
        """The texts of a request's selectors, or what is wrong with one of them: then no other is read any more."""
        texts: dict[str, None] = {}
        for selector in (*(device_class.spec.selectors or ()), *(asked.selectors or ())):
            self._fault = self._fault or self._read(selector)
            if self._fault:
                return self._fault
            if selector.cel is not None:
                texts[selector.cel.expression] = None
        return tuple(texts)

    def _read(self, selector: DeviceSelector) -> str:
        text = selector.cel.expression if selector.cel is not None else ""
        if text in self.parts:
            return ""
        if excess := selectors_excess([*self.parts.items(), (text, 0)]):
            return excess
        found = _compiled(selector)
        if isinstance(found, str):
            return f"the selector {quoted(text)} is not supported: {found}"
        self.parts[text] = found.parts
        return selectors_excess(self.parts.items())


def selector_fault(spec: ClaimSpec, classes: Mapping[str, DeviceClass], reading: ClaimSelectors) -> str:
    """What is wrong with a selector of a claim whose classes are all ours; empty if all are served."""
    for request in spec.devices.requests or ():
        for asked in ((request.exactly,) if request.exactly is not None else ()) + (request.first_available or ()):
            found = reading.read(classes[asked.device_class_name], asked)
            if isinstance(found, str):
                return f"request {request.name}: {found}"
    return ""


def selectors_excess(selectors: Iterable[tuple[str, int]]) -> str:
    """Why these, with their parts, are too many for one pod; empty if they are not."""
    parts = dict(selectors)
    for number, most, what in (
        (sum(map(len, parts)), MAX_SELECTOR_TEXT, "characters"),
        (sum(parts.values()), MAX_SELECTOR_PARTS, "parts"),
    ):
        if number > most:
            return f"selectors with more than {most} {what} in all; see docs/claims.md"
    return ""
