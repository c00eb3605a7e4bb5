"""Pods with ResourceClaims at admission: whose they are, and the templates that the webhook writes."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tessera.core.ledger.ledger import Ledger
from tessera.kube.errors import ApiError
from tessera.kube.resources import DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from tessera.scheduler.admission.claim_owners import NO_CLAIMS, ClaimLookup, ClaimOwner, Owner
from tessera.scheduler.admission.claim_templates import KEEP_S, RENEW_S, SEEN_S, USED, ClaimTemplates
from tessera.scheduler.admission.webhook import Webhook
from tessera.scheduler.observer import SchedulerObserver
from tessera.scheduler.settings import Settings
from tessera.wire.admission import decode_review
from tessera.wire.cel import compile_selector
from tessera.wire.resource_api import ResourceClaimTemplate
from tessera_lab.sandbox.api.kinds import RESOURCE_CLAIM_TEMPLATES as TEMPLATES
from tessera_lab.sandbox.control_plane import ControlPlane
from tests.support.admission import Document, container, pod, vendors, verdict
from tests.support.claim_scheduler import ClaimWorld, device_class

OURS, NET = "gpu.tessera.io", "net.example.com"
TEMPLATE: Document = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "tessera-1", "labels": {"tessera.io/converted": "true"}},
    "spec": {"spec": {"devices": {"requests": [{"name": "c0", "exactly": {"deviceClassName": OURS}}]}}},
}


# -- the verdict


def test_a_pod_whose_claims_are_ours_goes_to_our_scheduler() -> None:
    claiming = pod(container())
    answer = verdict(claiming, claims=ClaimOwner(Owner.OURS))
    assert answer.changed["spec"]["schedulerName"] == "hami-scheduler"
    assert not answer.warnings


@pytest.mark.parametrize("owner", [Owner.NONE, Owner.OTHERS, Owner.UNKNOWN])
def test_any_other_pod_with_claims_stays_where_it_is(owner: Owner) -> None:
    answer = verdict(pod(container()), claims=ClaimOwner(owner, "ResourceClaim x does not exist"))
    assert answer.allowed
    assert not answer.patch
    assert [*answer.warnings] == (
        ["ResourceClaim x does not exist, so the pod stays with its scheduler: create it before the pod"]
        if owner is Owner.UNKNOWN
        else []
    )


def test_a_pod_that_names_its_scheduler_or_its_node_keeps_it() -> None:
    named: list[dict[str, Any]] = [{"schedulerName": "mine"}, {"nodeName": "n"}]
    for spec in named:
        answer = verdict(pod(container(), **spec), claims=ClaimOwner(Owner.OURS))
        assert answer.allowed
        assert not answer.patch


def test_a_pod_with_shares_of_cards_and_claims_of_others_is_told_that_it_cannot_start() -> None:
    answer = verdict(pod(container(gpu="1", mem="1000")), claims=ClaimOwner(Owner.OTHERS, "ResourceClaim net"))
    assert [each for each in answer.warnings if each.startswith("ResourceClaim net: Tessera does not allocate it")]


# -- whose a claim is


@pytest.fixture
async def plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as found:
        for name in (OURS, NET):
            selectors = [{"cel": {"expression": f"device.driver == '{name}'"}}]
            await found.client.create(
                DEVICE_CLASSES.path(),
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "DeviceClass",
                    "metadata": {"name": name},
                    "spec": {"selectors": selectors},
                },
            )
        yield found


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0
        self.skew = 0.0
        """by which the wall clock is set"""

    def __call__(self) -> float:
        return self.seconds + self.skew

    def time(self) -> float:
        return self.seconds


def templates_of(plane: ControlPlane, clock: Clock | None = None) -> ClaimTemplates:
    clock = clock or Clock()
    return ClaimTemplates(plane.client, now=clock, time=clock.time)


def lookup(plane: ControlPlane, templates: ClaimTemplates | None = None) -> ClaimLookup:
    """With informers that have shown nothing yet."""
    return ClaimLookup(plane.client, ClaimWorld().claims.book, templates or templates_of(plane))


def asked(document: Document, *, dry_run: bool = False) -> bytes:
    request = {"uid": "1", "operation": "CREATE", "namespace": "default", "object": document, "dryRun": dry_run}
    return json.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}).encode()


def claiming(*claims: Document) -> Document:
    return pod(container(), resourceClaims=[{"name": f"r{at}", **each} for at, each in enumerate(claims)])


def template(name: str, *requests: Document) -> Document:
    spec = {"spec": {"devices": {"requests": [{"name": f"q{at}", **each} for at, each in enumerate(requests)]}}}
    return {**TEMPLATE, "metadata": {"name": name}, "spec": spec}


def of_class(name: str) -> Document:
    return {"exactly": {"deviceClassName": name}}


async def owner_of(plane: ControlPlane, *claims: Document) -> ClaimOwner:
    return await lookup(plane).find_owner(decode_review(asked(claiming(*claims))))


async def test_a_claim_is_ours_if_all_its_classes_are(plane: ControlPlane) -> None:
    either = {"firstAvailable": [{"name": "a", "deviceClassName": OURS}, {"name": "b", "deviceClassName": NET}]}
    both = {"firstAvailable": [{"name": "a", "deviceClassName": OURS}, {"name": "b", "deviceClassName": OURS}]}
    for made in (
        template("ours", of_class(OURS), both),
        template("theirs", of_class(NET)),
        template("either", either),
        template("classless", of_class("missing")),
    ):
        await plane.client.create(RESOURCE_CLAIM_TEMPLATES.path("default"), made)
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "shared"}}
    spec = template("x", of_class(OURS))["spec"]["spec"]
    await plane.client.create(RESOURCE_CLAIMS.path("default"), {**claim, "spec": spec})
    ours, theirs = {"resourceClaimTemplateName": "ours"}, {"resourceClaimTemplateName": "theirs"}
    assert await owner_of(plane) == NO_CLAIMS
    assert await owner_of(plane, ours) == ClaimOwner(Owner.OURS)
    assert await owner_of(plane, ours, {"resourceClaimName": "shared"}) == ClaimOwner(Owner.OURS)
    foreign = await owner_of(plane, ours, theirs)
    assert foreign.owner is Owner.OTHERS
    assert "ResourceClaimTemplate theirs asks for devices of class net.example.com" in foreign.text
    assert (await owner_of(plane, {"resourceClaimTemplateName": "either"})).owner is Owner.OTHERS
    missing = await owner_of(plane, ours, {"resourceClaimTemplateName": "gone"})
    assert missing == ClaimOwner(Owner.UNKNOWN, "ResourceClaimTemplate gone does not exist")
    assert (await owner_of(plane, {"resourceClaimName": "gone"})).owner is Owner.UNKNOWN
    assert "class missing" in (await owner_of(plane, {"resourceClaimTemplateName": "classless"})).text
    # One that is not ours decides, whatever is unknown.
    assert (await owner_of(plane, {"resourceClaimName": "gone"}, theirs)).owner is Owner.OTHERS


def selecting(*texts: str) -> Document:
    selectors = [{"cel": {"expression": text}} for text in texts]
    return {"exactly": {"deviceClassName": OURS, "selectors": selectors}}


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        (["device.attributes['x'].y.split(',') == []"], "is not supported: the method split() with 1 arguments"),
        (["'a'.matches('(a{99}){9}') && " * 40 + "true"], "is not supported: it takes too much work"),
        ([f"[{'1,' * 2000}] == []"], "is not supported: more than 1000 parts"),
        ([f"'{number}{'x' * 9000}' != ''" for number in range(2)], "selectors with more than 16384 characters in all"),
        (["[" + "1," * 800 + f"{number}] != []" for number in range(2)], "selectors with more than 1000 parts in all"),
    ],
)
async def test_a_pod_whose_selectors_will_never_be_evaluated_is_refused(
    plane: ControlPlane, texts: list[str], fault: str
) -> None:
    await plane.client.create(RESOURCE_CLAIM_TEMPLATES.path("default"), template("hostile", selecting(*texts)))
    owner = await owner_of(plane, {"resourceClaimTemplateName": "hostile"})
    assert owner.owner is Owner.OURS
    assert owner.fault.startswith("ResourceClaimTemplate hostile: request q0: ")
    assert fault in owner.fault
    answer = verdict(claiming({"resourceClaimTemplateName": "hostile"}), claims=owner)
    assert (answer.allowed, answer.message) == (False, owner.fault)
    bound = claiming({"resourceClaimTemplateName": "hostile"})
    bound["spec"]["nodeName"] = "n1"
    assert verdict(bound, claims=owner).allowed, "another scheduler has placed it"


async def test_the_claims_of_a_pod_are_read_until_one_is_wrong(plane: ControlPlane) -> None:
    templates = ClaimTemplates(plane.client, now=(clock := Clock()), time=clock.time)
    for number in range(3):
        wrong = template(f"t{number}", selecting(f"{'x' * 9000} == {number}"))
        templates.put(f"default/t{number}", msgspec.convert(wrong, ResourceClaimTemplate))
    compile_selector.cache_clear()
    claims = claiming(*({"resourceClaimTemplateName": f"t{number}"} for number in range(3)))
    owner = await lookup(plane, templates).find_owner(decode_review(asked(claims)))
    assert owner.fault.startswith("ResourceClaimTemplate t0: ")
    assert compile_selector.cache_info().currsize == 2, "the class's, and one of the pod's"


async def test_what_informers_show_is_not_read_again(plane: ControlPlane) -> None:
    templates = templates_of(plane)
    templates.put("default/ours", msgspec.convert(template("ours", of_class(OURS)), ResourceClaimTemplate))
    world = ClaimWorld()
    found = ClaimLookup(plane.client, world.claims.book, templates)
    world.claims.book.put_class(device_class())
    await plane.client.delete(DEVICE_CLASSES.path(name=OURS))
    body = decode_review(asked(claiming({"resourceClaimTemplateName": "ours"})))
    assert await found.find_owner(body) == ClaimOwner(Owner.OURS)


# -- templates of requests


async def reviewed(claims: ClaimLookup, document: Document, *, dry_run: bool = False) -> Document:
    """The answer of a webhook that converts."""
    settings = Settings(dra=True, dra_convert=True)
    webhook = Webhook(vendors(), settings, Ledger(vendors()), claims=claims, observer=SchedulerObserver())
    answer = webhook.answer(asked(document, dry_run=dry_run), "application/json")
    assert not isinstance(answer, bytes)
    response: Document = json.loads(await answer)["response"]
    assert response["allowed"], response
    return response


def names(plane: ControlPlane) -> list[str]:
    return [str(each.object["metadata"]["name"]) for each in plane.server.cluster.store.list(TEMPLATES)]


async def test_the_template_exists_before_the_pod_and_is_there_once(plane: ControlPlane) -> None:
    asking = pod(container(gpu="1", mem="1000"))
    # Two replicas whose informers have shown nothing.
    for claims in (lookup(plane), lookup(plane)):
        response = await reviewed(claims, asking)
        patch = base64.b64decode(response["patch"]).decode()
        [name] = names(plane)
        assert name in patch
    owner = await lookup(plane).find_owner(decode_review(asked(claiming({"resourceClaimTemplateName": name}))))
    assert owner == ClaimOwner(Owner.OURS)


async def test_a_dry_run_writes_nothing_and_answers_the_same(plane: ControlPlane) -> None:
    asking = pod(container(gpu="1", mem="1000"))
    dry = await reviewed(lookup(plane), asking, dry_run=True)
    assert names(plane) == []
    assert (await reviewed(lookup(plane), asking))["patch"] == dry["patch"]


async def test_a_pod_whose_template_cannot_be_written_stays_as_it_is(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise ApiError(status=403, message="no rights")

    monkeypatch.setattr(ClaimTemplates, "_write", lambda *_, **__: refuse())
    response = await reviewed(lookup(plane), pod(container(gpu="1", mem="1000")))
    assert "resourceClaims" not in base64.b64decode(response["patch"]).decode()
    assert [each for each in response["warnings"] if "its template cannot be written" in each]


async def listed(plane: ControlPlane, templates: ClaimTemplates) -> None:
    """What the informer shows now."""
    for each in (await plane.client.list(RESOURCE_CLAIM_TEMPLATES.path(), ResourceClaimTemplate)).items:
        templates.put(f"{each.metadata.namespace}/{each.metadata.name}", each)


def used_at(plane: ControlPlane) -> str:
    [found] = plane.server.cluster.store.list(TEMPLATES)
    return str(found.object["metadata"]["annotations"][USED])


async def test_a_template_that_no_pod_has_used_for_a_day_is_deleted(plane: ControlPlane) -> None:
    clock = Clock()
    templates = templates_of(plane, clock)
    await plane.client.create(RESOURCE_CLAIM_TEMPLATES.path("default"), template("users-own", of_class(OURS)))
    await templates.use("default", TEMPLATE)
    await listed(plane, templates)
    clock.seconds += KEEP_S
    assert await templates.sweep() == 0
    clock.seconds += 1
    assert await templates.sweep() == 1
    assert names(plane) == ["users-own"]
    # The informer has not shown that yet, and a pod needs it again.
    await templates.use("default", TEMPLATE)
    assert sorted(names(plane)) == ["tessera-1", "users-own"]


async def test_a_clock_that_is_set_ahead_deletes_no_template_that_was_just_used(plane: ControlPlane) -> None:
    clock = Clock()
    templates = templates_of(plane, clock)
    await templates.use("default", TEMPLATE)
    await listed(plane, templates)
    clock.skew = 2 * KEEP_S
    assert await templates.sweep() == 0
    clock.seconds += SEEN_S + 1
    assert await templates.sweep() == 1


async def test_a_use_is_recorded_by_a_clock_that_was_set_back(plane: ControlPlane) -> None:
    clock = Clock()
    await templates_of(plane, clock).use("default", TEMPLATE)
    clock.skew = -KEEP_S
    templates = templates_of(plane, clock)
    await listed(plane, templates)
    await templates.use("default", TEMPLATE)
    assert used_at(plane) == str(int(clock()))


async def test_a_template_that_is_used_is_kept_with_one_write_an_hour(plane: ControlPlane) -> None:
    clock = Clock()
    leader, other = templates_of(plane, clock), templates_of(plane, clock)
    await leader.use("default", TEMPLATE)
    await listed(plane, other)
    began = used_at(plane)
    clock.seconds += RENEW_S - 1
    await other.use("default", TEMPLATE)
    assert used_at(plane) == began
    clock.seconds += KEEP_S
    await other.use("default", TEMPLATE)
    assert used_at(plane) == str(int(clock.seconds))
    # The leader's informer does not show that use yet, but the version that it would delete is gone.
    assert await leader.sweep() == 0
    assert names(plane) == ["tessera-1"]
