"""What ResourceClaims ask for, in the words of the core: pure.

A request of a claim is placed like a container that runs from before the first container to the end of the pod. Where
a claim lists alternatives (`firstAvailable`), each combination of them is a request of its own, tried in order. What
cannot be served exactly is refused with a reason. Tenants write selectors, so there is a limit to what is read for one
pod; what one of them costs on devices is the business of `wire.cel`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import ceil, prod

from tessera.core.model.devices import HAMI_CORE, MIG, MPS, WHOLE
from tessera.core.model.grants import Grants
from tessera.core.model.requests import (
    CLAIM_SEPARATOR,
    WHOLE_CARD_CORES,
    AttributeMatch,
    Constraint,
    ContainerRequest,
    PodRequest,
    Request,
    Role,
    claim_and_request,
)
from tessera.vendors.claims.pools import MIB, full_name
from tessera.vendors.drafts import BadPod
from tessera.vendors.nvidia import Nvidia
from tessera.vendors.parts.card_shares import WHOLE_MEMORY
from tessera.wire.cel import AllOf, Selector, compile_selector
from tessera.wire.cel.compiler import Domains
from tessera.wire.cel.values import Failed, Meter, TooCostly, Value
from tessera.wire.errors import quoted
from tessera.wire.golang import INT32_MAX
from tessera.wire.objects import QuantityText
from tessera.wire.quantity import NotAQuantity, read
from tessera.wire.resource_api import (
    ALL,
    CORES,
    DRIVER,
    MEMORY,
    SHARES,
    ClaimSpec,
    DeviceClass,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    DeviceToleration,
    ExactRequest,
    ResourceClaim,
)

MAX_SELECTOR_TEXT, MAX_SELECTOR_PARTS = 16 << 10, 1_000
"""characters, and parts of expressions, in all different selectors of a pod's claims and their classes: reading them
takes up to 20 ms"""
OTHER_DRIVER = "other.invalid"
CARD_MODES = (HAMI_CORE, MPS, WHOLE)
"""of cards that are not divided into instances"""
MODE_COST = 5_000
"""of what the selectors of a claim say of sharing modes: at most 0.3 ms, and far more than people write"""


def is_our_class(device_class: DeviceClass) -> bool:
    """Whether devices of our driver may be of this class, and no others. A class that cannot be read is not."""
    selectors = [_compiled(each) for each in device_class.spec.selectors or ()]
    known = [each for each in selectors if isinstance(each, Selector)]
    if len(known) < len(selectors):
        return False
    ours, others = _PartlyKnown(driver=DRIVER), _PartlyKnown(driver=OTHER_DRIVER)
    may_be_ours = all(each.evaluate(ours) is not False for each in known)
    return may_be_ours and any(each.evaluate(others) is False for each in known)


class _PartlyKnown(dict[str, Value]):
    """A device, or its attributes: whatever needs more than is known has no value."""

    def __missing__(self, key: str) -> Value:
        raise Failed(f"{key} is not known")

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or bool(self[str(key)])


def _compiled(selector: DeviceSelector) -> Selector | str:
    return compile_selector(selector.cel.expression) if selector.cel is not None else "a selector that is not CEL"


def asks_for_instance(texts: Iterable[str], meter: Meter) -> bool:
    """Whether selectors ask for a MIG instance: they look at profiles, or exclude every card that is none. A claim that
    does not say so gets none, as a pod without the annotation: an instance may be many times what it asks for."""
    selectors = [found for found in map(compile_selector, texts) if isinstance(found, Selector)]
    names = [each.look.names or frozenset() for each in selectors]
    if any("profile" in each for each in names):
        return True
    telling = [each for each, read in zip(selectors, names, strict=True) if not read.isdisjoint(("type", "mode"))]
    cards = [
        _PartlyKnown(driver=DRIVER, attributes=Domains({DRIVER: _PartlyKnown(type="gpu", mode=mode)}))
        for mode in CARD_MODES
    ]
    try:
        return all(any(each.evaluate_within(card, meter) is False for each in telling) for card in cards)
    except TooCostly:
        return False


class ClaimSelectors:
    """The selectors of a claim, or of all claims of a pod, read one by one: what is too much is refused before all of
    it is read."""

    def __init__(self) -> None:
        self.parts: dict[str, int] = {}
        """by text"""
        self.meter = Meter(MODE_COST)
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


MAX_VARIANTS = 32
"""combinations of alternatives of one pod: each is placed like a pod of its own"""
UUID = full_name("uuid")
MEMORY_NAME, CORES_NAME, SHARES_NAME = map(full_name, (MEMORY, CORES, SHARES))


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to serve a request of a claim."""

    name: str
    """`REQUEST` or `REQUEST/ALTERNATIVE`, as results name it"""
    request: Request
    class_name: str
    tolerations: tuple[DeviceToleration, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """What a claim asks for."""

    name: str
    requests: tuple[tuple[Alternative, ...], ...]
    """alternatives of each request, the best first"""
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    class_config: tuple[tuple[str, tuple[DeviceConfiguration, ...]], ...] = ()
    """of classes that have one"""
    selectors: tuple[tuple[str, int], ...] = ()
    """all different ones, and how many parts each has"""


@dataclass(frozen=True, slots=True)
class BadClaim:
    """A claim that is not served."""

    claim: str
    text: str
    is_foreign: bool = False
    """it asks for devices of another driver: another scheduler may serve it"""
    is_early: bool = False
    """it may be served once its class exists"""

    @property
    def message(self) -> str:
        return f"ResourceClaim {self.claim}: {self.text}"


# -- claims


def read_claim(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> ClaimAsk | BadClaim:
    """What a claim asks for, or why it is not served."""
    name, spec = claim.metadata.name, claim.spec.devices
    requests: list[tuple[Alternative, ...]] = []
    reading = ClaimSelectors()
    for request in spec.requests or ():
        found = _alternatives(request, classes, reading)
        if isinstance(found, BadClaim):
            return replace(found, claim=name, text=f"request {request.name}: {found.text}")
        requests.append(found)
    for constraint in spec.constraints or ():
        fault = _constraint_fault(constraint)
        if fault:
            return BadClaim(name, fault)
    used = {each.class_name for alternatives in requests for each in alternatives}
    config = {each: classes[each].spec.config or () for each in sorted(used)}
    return ClaimAsk(
        name=name,
        requests=tuple(requests),
        constraints=spec.constraints or (),
        config=spec.config or (),
        class_config=tuple((each, found) for each, found in config.items() if found),
        selectors=tuple(reading.parts.items()),
    )


def _alternatives(
    request: DeviceRequest, classes: Mapping[str, DeviceClass], reading: ClaimSelectors
) -> tuple[Alternative, ...] | BadClaim:
    if request.exactly is not None:
        only = _alternative(request.name, request.exactly, classes, reading)
        return only if isinstance(only, BadClaim) else (only,)
    found: list[Alternative] = []
    for each in request.first_available or ():
        one = _alternative(f"{request.name}/{each.name}", each, classes, reading)
        if isinstance(one, BadClaim):
            return one
        found.append(one)
    return tuple(found) if found else BadClaim("", "it is of a kind that this version does not know")


def _alternative(
    name: str, asked: ExactRequest, classes: Mapping[str, DeviceClass], reading: ClaimSelectors
) -> Alternative | BadClaim:
    device_class = classes.get(asked.device_class_name)
    if device_class is None:
        return BadClaim("", f"the DeviceClass {quoted(asked.device_class_name)} does not exist", is_early=True)
    if not is_our_class(device_class):
        text = f"the DeviceClass {quoted(asked.device_class_name)} is not for devices of {DRIVER} alone"
        return BadClaim("", f"{text}; leave pods with such claims to the default scheduler", is_foreign=True)
    if asked.allocation_mode == ALL:
        return BadClaim("", "allocationMode All is not supported; name a count")
    texts = reading.read(device_class, asked)
    if isinstance(texts, str):
        return BadClaim("", texts)
    amounts = _amounts((asked.capacity.requests or {}) if asked.capacity is not None else {})
    if isinstance(amounts, str):
        return BadClaim("", amounts)
    memory, cores = amounts
    count = 1 if asked.count is None else asked.count
    if not 0 < count <= INT32_MAX:
        return BadClaim("", f"a count of {count}")
    modes = set(CARD_MODES)
    if count > 1:  # A process talks to one MPS daemon, and each card has its own.
        modes.remove(MPS)
    if asks_for_instance(texts, reading.meter) and not asked.admin_access:  # An administrator's access is to cards.
        modes.add(MIG)
    accepts = Constraint(mode=",".join(sorted(modes)), filter=AllOf(DRIVER, texts))
    if asked.admin_access:
        request = Request(vendor=Nvidia.key, count=count, accepts=accepts)
    else:
        percent = 0 if memory else WHOLE_MEMORY
        request = Request(Nvidia.key, count, memory, percent, cores, accepts)
    return Alternative(name, request, asked.device_class_name, asked.tolerations or ())


def _amounts(requests: Mapping[str, QuantityText]) -> tuple[int, int] | str:
    """MiB (0 = all) and cores, by the policies that agents publish; or what is wrong."""
    memory = cores = 0
    for name, text in requests.items():
        found = read(text)
        if isinstance(found, NotAQuantity) or found.value < 0:
            return f"{quoted(str(text))} of {name} is not an amount"
        match full_name(name):
            case known if known == MEMORY_NAME:
                memory = max(ceil(Fraction(found.value) / MIB), 1)
                if memory > INT32_MAX:
                    return f"{text} of {name} is more than any card has"
            case known if known == CORES_NAME:
                cores = ceil(found.value)
                if cores > WHOLE_CARD_CORES:
                    return f"{text} of {name}: a whole card is {WHOLE_CARD_CORES}"
            case known if known == SHARES_NAME:
                if found.value > 1:
                    return f"{text} of {name}: a claim takes 1"
            case _:
                return f"no device has the capacity {quoted(name)}"
    return memory, cores


def _constraint_fault(constraint: DeviceConstraint) -> str:
    if constraint.match_attribute is not None:
        return ""
    if constraint.distinct_attribute is None:
        return "a constraint of a kind that this version does not know"
    if full_name(constraint.distinct_attribute) != UUID:
        return f"distinctAttribute {quoted(constraint.distinct_attribute)} is not supported; {UUID} is"
    return ""


# -- pods


def with_claims(request: PodRequest, asks: Sequence[ClaimAsk]) -> tuple[PodRequest, ...] | BadPod:
    """The pod's request together with those of its claims that are not allocated: one for each combination of
    alternatives, to be tried in order."""
    lists = [alternatives for ask in asks for alternatives in ask.requests]
    owners = [ask for ask in asks for _ in ask.requests]
    variants = prod(map(len, lists))
    if variants > MAX_VARIANTS:
        text = f"its claims have {variants} combinations of alternatives; at most {MAX_VARIANTS}"
        return BadPod("", text)
    found = []
    for chosen in product(*lists):
        parts = [
            ContainerRequest(f"{owner.name}{CLAIM_SEPARATOR}{each.name}", Role.CLAIM, (each.request,))
            for owner, each in zip(owners, chosen, strict=True)
        ]
        containers = (*request.containers, *parts)
        first = len(request.containers)
        matches = tuple(match for ask in asks for match in _matches(ask, owners, chosen, first))
        variant = replace(request, containers=containers, matches=(*request.matches, *matches))
        excess = variant.excess()
        if excess:
            return BadPod("", excess)
        found.append(variant)
    return tuple(found)


def _matches(
    ask: ClaimAsk, owners: Sequence[ClaimAsk], chosen: Sequence[Alternative], first: int
) -> list[AttributeMatch]:
    own = [(first + place, each.name) for place, each in enumerate(chosen) if owners[place] is ask]
    found = []
    for constraint in ask.constraints:
        named = constraint.requests or ()
        positions = tuple(place for place, name in own if not named or name in named or name.partition("/")[0] in named)
        attribute = constraint.match_attribute or constraint.distinct_attribute or ""
        if positions:
            found.append(AttributeMatch(attribute, positions, distinct=constraint.match_attribute is None))
    return found


def claim_grants(request: PodRequest, grants: Mapping[str, tuple[Grants, ...]]) -> dict[str, dict[str, Grants]]:
    """What a placement gives to each claim, by claim and by the request that results name."""
    found: dict[str, dict[str, Grants]] = {}
    for position, container in enumerate(request.containers):
        if container.role is Role.CLAIM:
            claim, name = claim_and_request(container.name)
            given = tuple(grant for containers in grants.values() for grant in containers[position])
            found.setdefault(claim, {})[name] = given
    return found
