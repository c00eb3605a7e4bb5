"""Pools, claims and selectors for tests: slices as an agent publishes them, claims and CEL as users write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tessera.core.model.devices import WHOLE, Attribute, Device, MigSlot, NodeFacts, Published
from tessera.core.model.grants import Grants
from tessera.node.dra.offers import Surrounding, offers, slice_contents
from tessera.node.fleet import Fleet
from tessera.node.registration.devices import registrable
from tessera.node.settings import AgentSettings
from tessera.vendors.claims.asks import ClaimAsk, read_claim
from tessera.vendors.claims.pools import MIB, PoolDevice, PoolDevices, pool_devices, with_published
from tessera.wire.node_config import Mode, NodeSettings
from tessera.wire.resource_api import (
    DRIVER,
    MANAGED,
    MANAGED_BY_TESSERA,
    NO_SCHEDULE,
    Allocation,
    ClaimStatus,
    DeviceClass,
    Pool,
    ResourceClaim,
    ResourceSlice,
    SliceDevice,
    SliceSpec,
    Taint,
)

OURS = f"device.driver == '{DRIVER}'"


def attribute(name: str) -> str:
    """How a selector names one of our attributes."""
    return f"device.attributes['{DRIVER}'].{name}"


def device_class(*expressions: str, name: str = DRIVER, **spec: Any) -> DeviceClass:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"selectors": selectors, **spec}}, DeviceClass)


CLASSES: Mapping[str, DeviceClass] = {DRIVER: device_class(OURS)}


def exactly(*selectors: str, count: int | None = None, **more: Any) -> dict[str, Any]:
    """A request for devices of our class; `memory` and `cores` are capacities."""
    capacity = {name: more.pop(name) for name in ("memory", "cores", "shares") if name in more}
    asked = {"deviceClassName": DRIVER, **more}
    if selectors:
        asked["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    if count is not None:
        asked["count"] = count
    if capacity:
        asked["capacity"] = {"requests": capacity}
    return asked


def claim(
    name: str = "claim",
    *requests: Mapping[str, Any],
    namespace: str = "default",
    constraints: Sequence[Mapping[str, Any]] = (),
    **named: Mapping[str, Any],
) -> ResourceClaim:
    """A claim; requests by name are exact ones."""
    every = [*requests, *({"name": key, "exactly": value} for key, value in named.items())]
    spec = {"devices": {"requests": every, "constraints": list(constraints)}}
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


def ask(of: ResourceClaim) -> ClaimAsk:
    """What a claim that can be served asks for."""
    found = read_claim(of, CLASSES)
    assert isinstance(found, ClaimAsk), found
    return found


def allocated(of: ResourceClaim, given: Allocation) -> ResourceClaim:
    """The claim as the API shows it once this was written."""
    status = msgspec.json.decode(msgspec.json.encode({"allocation": given}), type=ClaimStatus)
    return msgspec.structs.replace(of, status=status)


def agent(mode: Mode = "hami-core", *, node: str = "n", **settings: Any) -> AgentSettings:
    return AgentSettings(node_name=node, node=NodeSettings(mode=mode, **settings))


def slices(fleet: Fleet, settings: AgentSettings, *, managed: bool = True, generation: int = 1) -> list[ResourceSlice]:
    """The ResourceSlices of a node, with the taint of devices that Tessera allocates."""
    contents = slice_contents(offers(fleet, settings), Surrounding())
    pool = Pool(name=settings.node_name, generation=generation, resource_slice_count=len(contents))
    return [
        ResourceSlice(
            SliceSpec(
                driver=DRIVER,
                pool=pool,
                node_name=settings.node_name,
                devices=tuple(_tainted(content.devices, managed=managed)) or None,
                shared_counters=content.counters,
            )
        )
        for content in contents
    ]


def _tainted(devices: Iterable[SliceDevice] | None, *, managed: bool) -> Iterable[SliceDevice]:
    taint = Taint(key=MANAGED, value=MANAGED_BY_TESSERA, effect=NO_SCHEDULE)
    for device in devices or ():
        yield msgspec.structs.replace(device, taints=(taint,)) if managed else device


def pool(fleet: Fleet, settings: AgentSettings, *, managed: bool = True) -> PoolDevices:
    return pool_devices(slices(fleet, settings, managed=managed))


def node(fleet: Fleet, settings: AgentSettings, *, managed: bool = True) -> NodeFacts:
    """A node that registers its cards and publishes them."""
    cards = registrable(fleet, settings).devices
    return NodeFacts(settings.node_name, with_published(cards, pool(fleet, settings, managed=managed)))


def cards(grants: Mapping[str, Grants]) -> dict[str, list[str]]:
    """The uuids by request."""
    return {name: [grant.uuid for grant in given] for name, given in grants.items()}


# -- cards that no agent made


def publish(card: Device) -> Device:
    """The card as an agent would publish it, with a few attributes."""
    profiles = [(each.name, each.memory, each.cores) for each in card.mig_profiles] or [("", card.memory, card.cores)]
    return replace(card, published=tuple(sorted((name, _published(card, name, *size)) for name, *size in profiles)))


def _published(card: Device, profile: str, memory: int, cores: int) -> Published:
    common = [
        Attribute(f"{DRIVER}/index", "int", card.index),
        Attribute(f"{DRIVER}/model", "string", card.model),
        Attribute(f"{DRIVER}/numaNode", "int", card.numa),
        Attribute(f"{DRIVER}/type", "string", "mig" if profile else "gpu"),
        *([Attribute(f"{DRIVER}/profile", "string", profile)] if profile else []),
    ]
    return Published(
        common=tuple(sorted(common)),
        own=(Attribute(f"{DRIVER}/uuid", "string", card.uuid),),
        capacity=((f"{DRIVER}/cores", cores), (f"{DRIVER}/memory", memory * MIB)),
        shared=not profile and card.mode != WHOLE,
    )


def pool_of(facts: NodeFacts) -> PoolDevices:
    """The pool of a node whose cards are published."""
    found: list[PoolDevice] = []
    for each in facts.devices:
        by_profile = dict(each.published)
        sizes = {profile.name: profile for profile in each.mig_profiles}
        for name, published in by_profile.items():
            if not name:
                found.append(PoolDevice(each.uuid, each.uuid, published, each.memory, each.cores, is_managed=True))
                continue
            size = sizes[name]
            for at in size.placements:
                slot, device = MigSlot(name, at), f"{each.uuid}-{name}-{at.start}"
                found.append(
                    PoolDevice(device, each.uuid, published, size.memory, size.cores, slot=slot, is_managed=True)
                )
    return PoolDevices(facts.name, facts.name, {each.name: each for each in found})


G = "device.attributes['gpu.tessera.io']"
C = "device.capacity['gpu.tessera.io']"

TRUE = [
    "true",
    "device.driver == 'gpu.tessera.io'",
    "device.allowMultipleAllocations",
    f"{G}.spare",
    f"{G}.model == 'NVIDIA H200'",
    f'{G}["model"] == "NVIDIA H200"',
    f"{G}.model.startsWith('NVIDIA') && {G}.model.endsWith('200') && {G}.model.contains(' ')",
    f"{G}.model.lowerAscii() == 'nvidia h200' && {G}.model.upperAscii() == 'NVIDIA H200'",
    f"{G}.model.size() == 11 && size({G}.model) == 11",
    f"{G}.model.matches('^NVIDIA (H|B)[0-9]+$')",
    f"{G}.model.matches(r'(?i)\\bh[[:digit:]]{{3}}\\b') && {G}.model.matches(r'^\\pL+ (?P<name>\\S{{2,9}}?)\\z')",
    f"{G}.model in ['NVIDIA A100', 'NVIDIA H200']",
    f"{G}.index == 1 && {G}.index >= 1 && {G}.index < 2 && {G}.index != 0",
    f"{G}.index * 3 + 4 - 1 == 6 && 7 / 2 == 3 && -7 / 2 == -3 && 7 % -2 == 1 && -7 % 2 == -1 && 0x10 == 16",
    f"{G}.driverVersion.isGreaterThan(semver('580.9.0'))",
    f"{G}.driverVersion.isLessThan(semver('580.65.7-rc.1'))",
    f"{G}.computeCapability.compareTo(semver('9.0.0')) == 0 && {G}.computeCapability == semver('9.0.0')",
    f"{G}.driverVersion.major() == 580 && {G}.driverVersion.minor() == 65 && {G}.driverVersion.patch() == 6",
    "semver('1.0.0-alpha.2').isLessThan(semver('1.0.0-alpha.10')) && semver('1.0.0-1').isLessThan(semver('1.0.0-a'))",
    "isSemver('1.2.3') && !isSemver('1.2') && !isSemver('01.2.3') && isQuantity('1Gi') && !isQuantity('1Q')",
    f"{C}.memory.isGreaterThan(quantity('100Gi')) && {C}.memory.compareTo(quantity('140Gi')) == 0",
    f"{C}.memory == quantity('140Gi') && {C}.cores.asInteger() == 100 && {C}.cores.isInteger()",
    f"{C}.cores.sub(quantity('1')).isLessThan({C}.cores) && {C}.cores.add(20).compareTo(quantity('120')) == 0",
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'",
    f"has({G}.model) && !has({G}.nothing) && !has(device.attributes['nowhere'].model)",
    f"'gpu.tessera.io' in device.attributes && !('nowhere' in device.attributes) && 'model' in {G}",
    f"cel.bind(g, {G}, g.index == 1 && g.spare)",
    f"cel.bind(n, {G}.nothing, {G}.spare)",  # A value that fails counts where it is used, and it is not.
    f"cel.bind(a, 1, cel.bind(a, 2, a == 2) && a == 1) && {G}.spare",
    f"['A100', 'H200'].exists(m, {G}.model.endsWith(m)) && [1, 2].all(n, n >= {G}.index)",
    f"[1, 2].exists(n, n == 2 || {G}.nothing == n)",
    f"{G}.index == 1 ? {G}.spare : {G}.nothing",
    f"{G}.nothing == 1 || {G}.spare",  # One side decides, whatever the other is.
    f"{G}.spare || {G}.nothing == 1",
    f"!({G}.nothing == 1 && false)",
    f"{G}.index != '1' && !({G}.index == true)",  # Values of different types are different, not wrong.
    "['a'] != ['b'] && [1] + [2] == [1, 2] && [1, 2][1] == 2 && 'a' + 'b' == 'ab'",
    r"""'tab\t' == "tab	" && r'\d' == '\\d' && '\x41\u0042' == 'AB' && '''it's''' == "it's" """,
    "'a' < 'b' && 'B' < 'a' && false < true",
    "// a comment\ntrue",
]
FALSE = [
    "false",
    f"{G}.model == 'A100'",
    "!device.allowMultipleAllocations",
    f"{G}.index in []",
    f"{G}.spare ? false : true",
]
FAILED = [
    f"{G}.nothing == 1",
    "device.attributes['nowhere'].model == 'x'",
    f"{G}.model",  # not a truth value
    f"{G}.model && true",
    f"{G}.model > 1",
    f"{G}.model.startsWith(1)",
    f"{G}.index.startsWith('1')",
    f"{G}.index + 'a' == ''",
    f"!{G}.index",
    "1 / 0 == 1",
    "1 % 0 == 1",
    "9223372036854775807 + 1 > 0",
    "[1][1] == 1",
    "[1]['a'] == 1",
    "semver('1') == semver('1')",
    "quantity('many') == quantity('many')",
    f"{G}.driverVersion.isGreaterThan(quantity('1'))",
    f"{C}.memory > 1",
    "quantity('0.5').asInteger() == 0",
    f"{G}.spare && {G}.nothing == 1",
    f"{G}.model.matches({G}.model + '(')",
    "'a'.matches('a') && ['a'].exists(x, 1)",
    "'a'.exists(x, true)",
    "1 in 2",
    "size(1) == 1",
]
