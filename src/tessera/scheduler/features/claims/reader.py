"""From a pod with ResourceClaims to the request that filter places, and the pods that wait for their claims.

A claim that is allocated restricts its pod to a node. One that is not adds its requests to the pod's. A claim that is
made of a template appears some time after its pod, so a pod may have to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from msgspec.structs import replace

from tessera.scheduler.features.claims.book import ClaimBook, ClaimRecord, WriteState, owner_uid
from tessera.scheduler.pod_cycle import UNSEEN_TICKS
from tessera.scheduler.requests.pod_claims import ClaimNotReady, ClaimUse, PodClaims
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.vendors.claims.asks import BadClaim, ClaimAsk, selectors_excess, with_claims
from tessera.vendors.drafts import BadPod
from tessera.wire.objects import Pod, PodClaim
from tessera.wire.resource_api import DRIVER

MAX_CONSUMERS = 256
"""pods that a claim can be reserved for, by the API"""


class PodClaimReader:
    """Joins pods with their claims."""

    def __init__(self, book: ClaimBook, on_ready: Callable[[Pod], None]) -> None:
        """`on_ready`: a pod need not wait for its claims any more."""
        self._book = book
        self._on_ready = on_ready
        self._waiting: dict[str, Pod] = {}
        """pods that were refused because of their claims, by uid"""
        self._waiting_for: dict[str, dict[str, None]] = {}
        """their uids by the key of each claim"""
        self._unseen: dict[str, int] = {}
        """those of them that the API does not show, and for how many ticks"""

    def join(self, pod: Pod, prepared: PreparedRequest) -> PreparedRequest | BadPod:
        """The pod's request with its claims, or why there is none."""
        uses: list[ClaimUse] = []
        asks: list[ClaimAsk] = []
        node = pinned_by = ""
        position = len(prepared.request.containers)
        for own in pod.spec.resource_claims or ():
            record = self._find(pod, own)
            if isinstance(record, ClaimNotReady):
                return record
            if record is None or any(use.uid == record.uid for use in uses):
                continue
            problem = self._refuse(record, pod)
            if problem is not None:
                return problem
            if record.is_allocated:
                if record.facts is None:
                    return BadPod("", f"{_title(record)} is allocated, and not by {DRIVER}; the default scheduler "
                                      "handles such pods")  # fmt: skip
                if node and node != record.facts.node:
                    text = f"{_title(record)} is allocated on node {record.facts.node}, {pinned_by} on node {node}"
                    return ClaimNotReady("", text, is_stuck=True)
                node, pinned_by = record.facts.node, pinned_by or _title(record)
                uses.append(ClaimUse(record.key, record.uid, record.fence))
                continue
            ask = self._book.ask(record)
            if isinstance(ask, BadClaim):
                return ClaimNotReady("", ask.message) if ask.is_early else BadPod("", ask.message)
            positions = range(position, position + len(ask.requests))
            position = positions.stop
            asks.append(ask)
            if excess := selectors_excess(each for one in asks for each in one.selectors):
                return BadPod("", excess)
            is_own = owner_uid(record.claim) == pod.metadata.uid
            uses.append(ClaimUse(record.key, record.uid, record.fence, ask, positions, is_own))
        if not uses:
            return prepared
        classic = prepared.request
        variants = with_claims(classic, asks) if asks else (classic,)
        if isinstance(variants, BadPod):
            return variants
        claims = PodClaims(tuple(uses), classic, variants, node, pinned_by)
        return replace(prepared, request=variants[0], claims=claims)

    def _find(self, pod: Pod, own: PodClaim) -> ClaimRecord | ClaimNotReady | None:
        """The claim; None if the pod needs none."""
        name, namespace = own.resource_claim_name, pod.metadata.namespace
        if name is None:
            status = next((each for each in pod.status.resource_claim_statuses or () if each.name == own.name), None)
            if status is None:
                template = own.resource_claim_template_name or "?"
                return ClaimNotReady("", f"the claim {own.name} of template {template} does not exist yet")
            if status.resource_claim_name is None:
                return None
            name = status.resource_claim_name
        record = self._book.get(f"{namespace}/{name}")
        if record is None:
            return ClaimNotReady("", f"ResourceClaim {name} does not exist yet")
        if own.resource_claim_name is None and owner_uid(record.claim) != pod.metadata.uid:
            return ClaimNotReady("", f"{_title(record)} was not made for this pod")
        return record

    def _refuse(self, record: ClaimRecord, pod: Pod) -> ClaimNotReady | None:
        """Why a pod cannot use a claim now."""
        uid = pod.metadata.uid
        if record.claim.metadata.deletion_timestamp:
            # It goes once no pod has it reserved, this one neither.
            return ClaimNotReady("", f"{_title(record)} is being deleted", is_stuck=True)
        if record.state is not WriteState.IDLE and (record.pod != uid or record.state is WriteState.UNCERTAIN):
            return ClaimNotReady("", f"{_title(record)} is being written")
        if not record.is_allocated and self._book.is_taken(record, other_than=uid):
            return ClaimNotReady("", f"{_title(record)} is being allocated for another pod")
        if record.facts is not None and record.facts.problem:
            return ClaimNotReady("", record.facts.problem)
        consumers = record.consumers
        if uid not in consumers and len(consumers) >= MAX_CONSUMERS:
            return ClaimNotReady("", f"{_title(record)} is used by {len(consumers)} pods; at most {MAX_CONSUMERS}")
        return None

    def keys(self, pod: Pod) -> list[str]:
        """The keys of those claims of the pod that exist."""
        found = (self._find(pod, own) for own in pod.spec.resource_claims or ())
        return [record.key for record in found if isinstance(record, ClaimRecord)]

    # -- pods that wait

    def waiting(self) -> list[Pod]:
        """The pods that were refused because of their claims."""
        return list(self._waiting.values())

    def wait(self, pod: Pod) -> None:
        """The pod was refused because of its claims: report it once they have changed for the better.

        A pod that does not name its claims yet is not reported. kube-scheduler asks again by itself when it does.
        """
        uid, awaited = pod.metadata.uid, _claim_keys(pod)
        self._forget(uid)
        if awaited is not None:
            self._waiting[uid] = pod
            for key in awaited:
                self._waiting_for.setdefault(key, {})[uid] = None

    def on_claim(self, record: ClaimRecord) -> None:
        """A claim has changed, appeared, or is gone."""
        for uid in list(self._waiting_for.get(record.key, ())):
            self._try_again(self._waiting[uid])

    def on_pod(self, pod: Pod) -> None:
        """The API shows a pod."""
        if pod.metadata.uid in self._waiting and (pod.spec.node_name or pod.metadata.deletion_timestamp):
            self._forget(pod.metadata.uid)

    def on_pod_gone(self, uid: str) -> None:
        self._forget(uid)

    def tick(self, shown: Container[str]) -> None:
        """Forget pods that the API never shows: kube-scheduler may ask for one whose end was seen here before."""
        unseen = {uid: self._unseen.get(uid, 0) + 1 for uid in self._waiting if uid not in shown}
        for uid in [uid for uid, ticks in unseen.items() if ticks > UNSEEN_TICKS]:
            self._forget(uid)
            del unseen[uid]
        self._unseen = unseen

    def forget_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_for.clear()

    def _try_again(self, pod: Pod) -> None:
        for own in pod.spec.resource_claims or ():
            found = self._find(pod, own)
            if isinstance(found, ClaimNotReady) or (found is not None and self._refuse(found, pod) is not None):
                return
        self._forget(pod.metadata.uid)
        self._on_ready(pod)

    def _forget(self, uid: str) -> None:
        self._unseen.pop(uid, None)
        pod = self._waiting.pop(uid, None)
        for key in (_claim_keys(pod) or ()) if pod is not None else ():
            waiting = self._waiting_for[key]
            del waiting[uid]
            if not waiting:
                del self._waiting_for[key]


def _claim_keys(pod: Pod) -> list[str] | None:
    """Of all claims of the pod; None if it does not name one of them yet."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses or ()}
    names: dict[str, None] = {}
    for own in pod.spec.resource_claims or ():
        if own.resource_claim_name is None and own.name not in made:
            return None
        name = own.resource_claim_name or made[own.name]
        if name is not None:
            names[name] = None
    return [f"{pod.metadata.namespace}/{name}" for name in names]


def _title(record: ClaimRecord) -> str:
    return f"ResourceClaim {record.claim.metadata.name}"
