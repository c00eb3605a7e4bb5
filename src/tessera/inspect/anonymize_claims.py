"""Replaces names in ResourceSlices, DeviceClasses, ResourceClaims and their templates.

Selectors are texts that people write. Of their strings, those stay that match something that devices publish, and
amounts and versions: the others match no device, and a hash in their place matches none either. Comments go. Names of
requests stay, as names of containers do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tessera.inspect.state import ClaimObjects, Json

ChangeText = Callable[[str], str]
Hash = Callable[[str], str]

_STRING_OR_COMMENT = re.compile(
    r"""(?P<comment>//[^\n]*)
    |(?P<raw>[rR]?)(?P<quote>'''|\"\"\"|'|")(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)""",
    re.VERBOSE | re.DOTALL,
)
_AMOUNT = re.compile(r"[0-9]+(?:\.[0-9]+)*(?:[kMGTPE]i?|m)?")


class SelectorReplacer:
    """Replaces strings in CEL expressions. `published`: every name and value that devices have. `node_text` replaces
    names of nodes and uids in strings that stay."""

    def __init__(self, published: Iterable[str], *, digest: Hash, node_text: ChangeText) -> None:
        self._published = frozenset(published)
        self._digest = digest
        self._node_text = node_text

    def text(self, expression: str) -> str:
        return _STRING_OR_COMMENT.sub(self._replaced, expression)

    def _replaced(self, found: re.Match[str]) -> str:
        if found["comment"] is not None:
            return ""
        text = found["text"]
        if not text or _AMOUNT.fullmatch(text) or any(text in each or _matches(text, each) for each in self._published):
            return f"{found['raw']}{found['quote']}{self._node_text(text)}{found['quote']}"
        return f"'{self._digest(text)}'"


def _matches(pattern: str, text: str) -> bool:
    """Whether the text is found by a regular expression, if the pattern is one."""
    try:
        return re.search(pattern, text) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def published_texts(slices: Iterable[Json]) -> set[str]:
    """Every name and string that devices publish."""
    found: set[str] = set()
    for each in slices:
        spec = each.get("spec") or {}
        found.add(spec.get("driver", ""))
        for device in spec.get("devices") or ():
            found.add(device.get("name", ""))
            for name, value in (device.get("attributes") or {}).items():
                found.update(name.split("/"), (text for text in value.values() if isinstance(text, str)))
            for name in device.get("capacity") or ():
                found.update(name.split("/"))
    return found - {""}


def claim_names_of(pods: Iterable[Json], member: str) -> Iterator[str]:
    """The claims (`resourceClaimName`) or templates (`resourceClaimTemplateName`) that pods name."""
    for pod in pods:
        own = (pod.get("spec") or {}).get("resourceClaims") or ()
        for each in (*own, *((pod.get("status") or {}).get("resourceClaimStatuses") or ())):
            if each.get(member):
                yield each[member]


def users_of(claim: Json) -> list[Json]:
    """The pods that a claim was made for or is reserved for: what names them."""
    return [
        *(claim["metadata"].get("ownerReferences") or ()),
        *((claim.get("status") or {}).get("reservedFor") or ()),
    ]


def class_names_of(dra: ClaimObjects) -> Iterator[str]:
    """The classes that there are, and those that claims name."""
    yield from (each["metadata"]["name"] for each in dra.classes)
    specs = [each.get("spec") or {} for each in dra.claims]
    specs += [(each.get("spec") or {}).get("spec") or {} for each in dra.templates]
    for spec in specs:
        for request in (spec.get("devices") or {}).get("requests") or ():
            for exact in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                if exact and exact.get("deviceClassName"):
                    yield exact["deviceClassName"]


def with_claim_names(document: Json, claims: Mapping[str, str], templates: Mapping[str, str], *, digest: Hash) -> Json:
    """A pod's spec or status with the new names of its claims. Its own names for them become hashes."""
    changed = dict(document)
    for member in ("resourceClaims", "resourceClaimStatuses"):
        if member in document:
            renamed = [
                _renamed(each, resourceClaimName=claims, resourceClaimTemplateName=templates)
                for each in document[member]
            ]
            changed[member] = [{**each, "name": digest(each.get("name", ""))} for each in renamed]
    for member in ("initContainers", "containers"):
        if member in document:
            changed[member] = [_with_own_names(each, digest) for each in document[member]]
    return changed


def _with_own_names(container: Json, digest: Hash) -> Json:
    resources = container.get("resources") or {}
    if not resources.get("claims"):
        return container
    claims = [{**each, "name": digest(each.get("name", ""))} for each in resources["claims"]]
    return {**container, "resources": {**resources, "claims": claims}}


class ClaimAnonymizer:
    """Has the tables of new names. `node_text` replaces names of nodes and uids in texts."""

    def __init__(
        self,
        names: Mapping[str, Mapping[str, str]],
        *,
        node_text: ChangeText,
        selectors: SelectorReplacer,
    ) -> None:
        self._names = names
        self._node_text = node_text
        self._selectors = selectors

    def objects(self, dra: ClaimObjects) -> ClaimObjects:
        return ClaimObjects(
            slices=tuple(self._slice(each) for each in dra.slices),
            classes=tuple(self._class(each) for each in dra.classes),
            claims=tuple(self._claim(each) for each in dra.claims),
            templates=tuple(self._template(each) for each in dra.templates),
        )

    def _slice(self, found: Json) -> Json:
        """Pools are named after nodes, and cards may be."""
        changed: Json = replace_texts(found, self._node_text)
        return changed

    def _class(self, found: Json) -> Json:
        changed = {**found, "metadata": _renamed(found["metadata"], name=self._names["classes"])}
        return self._with_selectors(changed)

    def _claim(self, claim: Json) -> Json:
        names = self._names
        metadata = _renamed(claim["metadata"], name=names["claims"], namespace=names["namespaces"], uid=names["uids"])
        owners = metadata.get("ownerReferences") or ()
        metadata["ownerReferences"] = [_renamed(each, name=names["pods"], uid=names["uids"]) for each in owners]
        changed = {**claim, "metadata": metadata, "spec": self._spec(claim.get("spec") or {})}
        if "status" in claim:
            changed["status"] = self._status(claim["status"])
        return changed

    def _status(self, status: Json) -> Json:
        changed: Json = replace_texts(status, self._node_text)
        if status.get("reservedFor"):
            changed["reservedFor"] = [
                _renamed(each, name=self._names["pods"], uid=self._names["uids"]) for each in status["reservedFor"]
            ]
        return changed

    def _template(self, template: Json) -> Json:
        metadata = _renamed(template["metadata"], name=self._names["templates"], namespace=self._names["namespaces"])
        spec = template.get("spec") or {}
        return {"metadata": metadata, "spec": {**spec, "spec": self._spec(spec.get("spec") or {})}}

    def _spec(self, spec: Json) -> Json:
        devices = dict(spec.get("devices") or {})
        requests = []
        for request in devices.get("requests") or ():
            one = dict(request)
            if one.get("exactly"):
                one["exactly"] = self._exact(one["exactly"])
            if one.get("firstAvailable"):
                one["firstAvailable"] = [self._exact(each) for each in one["firstAvailable"]]
            requests.append(one)
        return {**spec, "devices": {**devices, "requests": requests}}

    def _exact(self, exact: Json) -> Json:
        return self._with_selectors(_renamed(exact, deviceClassName=self._names["classes"]))

    def _with_selectors(self, owner: Json) -> Json:
        """Of a class, whose selectors are in its spec, or of a request."""
        if "spec" in owner:
            return {**owner, "spec": self._with_selectors(owner["spec"])}
        if not owner.get("selectors"):
            return owner
        selectors = [
            {"cel": {"expression": self._selectors.text((each.get("cel") or {}).get("expression", ""))}}
            for each in owner["selectors"]
        ]
        return {**owner, "selectors": selectors}


def _renamed(document: Json, **tables: Mapping[str, str]) -> Json:
    """The document with new names in these members; names that no table has are left out."""
    changed = dict(document)
    for member, table in tables.items():
        if member in changed:
            changed[member] = table.get(changed[member], "")
    return changed


def replace_texts(value: Any, change: ChangeText) -> Any:
    if isinstance(value, dict):
        return {key: replace_texts(member, change) for key, member in value.items()}
    if isinstance(value, list):
        return [replace_texts(member, change) for member in value]
    return change(value) if isinstance(value, str) else value
