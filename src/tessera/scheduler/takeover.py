"""Before its first decision, a decider makes sure that no Binding of an earlier one can land any more.

    consistent list of the pods that are not bound, and of the claims that are not in use
        --> touch each --> (the caller) read all pods and claims again --> decide

A Binding carries the version of the pod that its decision saw, and the apiserver refuses it for any other version. So a
touch voids every Binding that was sent before it, however late it arrives. A Binding that landed before the touch is in
the list of pods that follows. What was created after the list is unknown to earlier deciders: their lease was over.

The same holds for what was sent to allocate or to release a ResourceClaim. Its pod may be gone by now, so every claim
is touched that is not allocated, or only for pods that are not bound.

A pod that cannot be touched keeps this replica from deciding; it is tried again, with pauses, while the tenure lasts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence

import structlog

from tessera.kube.backoff import Backoff
from tessera.kube.errors import ApiError, KubeError, is_conflict, is_invalid, is_not_found
from tessera.scheduler.kube_api import KubeApi
from tessera.scheduler.tenure import Tenure
from tessera.wire import keys
from tessera.wire.objects import Pod
from tessera.wire.resource_api import ResourceClaim

log = structlog.get_logger(__name__)

AT_ONCE = 32
"""touches in flight: more do not make an apiserver faster, and it serves others too"""
TAKING_OVER = "this replica is taking over"
TOO_LARGE = "request is too large"
"""etcd's answer to a pod as large as pods may be: then a Binding, which adds more than a touch, cannot land either"""
PAUSES = Backoff(initial=0.5, cap=15.0)


async def touch(api: KubeApi, namespace: str, name: str, fence: str) -> Pod:
    """Change the pod's version; the pod as it is then."""
    try:
        return await api.annotate_pod(namespace, name, {keys.FENCE: fence})
    except ApiError as error:
        if not is_invalid(error):
            raise
        # Tenants may fill all that annotations may hold. Labels have no such limit, and a Binding checks none.
        return await api.annotate_pod(namespace, name, {}, labels={keys.FENCE: fence})


class Takeover:
    """Fences the pods for one replica."""

    def __init__(
        self,
        api: KubeApi,
        tenure: Tenure,
        *,
        is_ours: Callable[[Pod], bool],
        now: Callable[[], float],
        is_ours_claim: Callable[[ResourceClaim], bool] | None = None,
    ) -> None:
        """`is_ours`, `is_ours_claim`: whether this scheduler, or an earlier one, may have decided about the pod, or
        written the claim. None: it writes no claims."""
        self._api = api
        self._tenure = tenure
        self._is_ours = is_ours
        self._now = now
        self._is_ours_claim = is_ours_claim
        self.problem = ""
        """why it does not get on; empty if it does, or none runs"""
        self._left: dict[str, Pod | ResourceClaim] = {}
        """by uid"""
        self._nominated: list[Pod] = []
        """pods that an earlier decider has nominated for a node, until that is cleared"""

    @property
    def left(self) -> int:
        """Pods and claims that are not fenced yet."""
        return len(self._left)

    async def run(self, number: int) -> str | None:
        """The fence that every pod has by now; None if the tenure ended before."""
        tenure, is_listed, failures = self._tenure, False, 0
        nominated: list[Pod] = []
        fence = f"{int(self._now())}-{random.getrandbits(32):08x}"
        tenure.obstacle = TAKING_OVER
        try:
            while tenure.current == number:
                try:
                    if not is_listed:
                        found = await self._api.unbound_pods()
                        pods = [pod for pod in found if self._is_ours(pod)]
                        claims = await self._claims_to_touch(pods)
                        everything: list[Pod | ResourceClaim] = [*pods, *claims]
                        self._left = {each.metadata.uid: each for each in everything}
                        nominated = [pod for pod in pods if _is_nominated(pod)]
                        is_listed = True
                    self.problem = await self._touch_all(number, fence)
                except KubeError as error:
                    self.problem = f"pods or claims that are not in use cannot be listed: {error}"
                if not self.problem:
                    if tenure.current != number:
                        return None
                    self._nominated = nominated
                    return fence
                failures += 1
                tenure.obstacle = f"{TAKING_OVER}, but {self.problem}"
                log.warning("take-over held up", problem=self.problem)
                await asyncio.sleep(PAUSES.delay(failures))
            return None
        finally:
            self._left, self.problem = {}, ""

    async def clear_nominated_nodes(self, number: int, *, is_nominated: Callable[[str], bool]) -> None:
        """Nominations end with their decider, but the API shows them, and kube-scheduler keeps CPU and memory free for
        them. Each is tried once, one after the other, except for pods that are nominated again."""
        nominated, self._nominated = self._nominated, []
        for metadata in (pod.metadata for pod in nominated):
            if self._tenure.current != number:
                return
            if is_nominated(metadata.uid):
                continue
            try:
                await self._api.set_nominated_node(metadata.namespace, metadata.name, uid=metadata.uid, node=None)
            except KubeError as error:
                log.warning("nominated node not removed", pod=f"{metadata.namespace}/{metadata.name}", error=str(error))

    async def _claims_to_touch(self, unbound: Sequence[Pod]) -> list[ResourceClaim]:
        """Claims that an earlier decider may have been about to write, for pods that may be gone."""
        if self._is_ours_claim is None:
            return []
        uids = {pod.metadata.uid for pod in unbound}
        return [
            claim
            for claim in await self._api.list_claims()
            if (claim.status.allocation is None and self._is_ours_claim(claim))
            or any(each.uid in uids for each in claim.status.reserved_for or ())
        ]

    async def _touch_all(self, number: int, fence: str) -> str:
        """One try for every pod that is left; empty, or what keeps some of them from being touched."""
        objects = iter(list(self._left.values()))
        workers = [self._touch_some(objects, number, fence) for _ in range(min(AT_ONCE, self.left))]
        problems = [problem for problem in await asyncio.gather(*workers) if problem]
        what = "pods" if self._is_ours_claim is None else "pods or claims"
        return f"{self.left} {what} cannot be touched, {problems[0]}" if problems else ""

    async def _touch_some(self, objects: Iterator[Pod | ResourceClaim], number: int, fence: str) -> str:
        problem = ""
        for found in objects:
            if self._tenure.current != number:
                break
            metadata = found.metadata
            try:
                if isinstance(found, ResourceClaim):
                    await self._api.mark_claim(found, {keys.FENCE: fence})
                else:
                    await touch(self._api, metadata.namespace, metadata.name, fence)
            except KubeError as error:
                if not isinstance(error, ApiError) or not _is_harmless(error, found):
                    problem = f"such as {metadata.namespace}/{metadata.name}: {error}"
                    if isinstance(error, ApiError) and not error.is_transient:
                        continue
                    break  # The other pods would fare the same.
            del self._left[metadata.uid]
        return problem


def _is_harmless(error: ApiError, found: Pod | ResourceClaim) -> bool:
    """Whether no write of an earlier decider can land, either: the object is gone, replaced, or as large as may be."""
    is_replaced = is_conflict(error) and isinstance(found, ResourceClaim)
    return is_not_found(error) or is_replaced or TOO_LARGE in error.message


def _is_nominated(pod: Pod) -> bool:
    """Whether a Tessera scheduler has nominated the pod. kube-scheduler's own nominations have no such mark."""
    return bool(pod.status.nominated_node_name) and pod.status.nominated_node_name == pod.annotations.get(
        keys.NOMINATED
    )
