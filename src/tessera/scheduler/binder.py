"""POST /bind: one atomic write of node and allocation, after the handover turn where one is needed.

    reservation (or a new placement after a restart)
      -> the ledger holds it for good (it no longer expires)
      -> turn, node lock                         only where the plugin needs them
      -> Binding with all annotations, uid as precondition
    written                                      done
    no answer                                    looked up before anything else is decided; held while it may yet land
    refused for now (429, 5xx)                   tried again, a few times; then back to a reservation
    gone, re-created, bound elsewhere (404, 409) released

Every end leaves the ledger as the API will show it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from enum import Enum

import msgspec
import structlog

from tessera.core.fit import fit_pod
from tessera.core.grants import Placement
from tessera.core.ledger import Ledger
from tessera.core.misfits import Misfit
from tessera.core.requests import PodRequest
from tessera.kube.errors import ApiError, KubeError, Unreachable
from tessera.scheduler.filter import Filter
from tessera.scheduler.kube_api import Cluster
from tessera.scheduler.pod_requests import Prepared
from tessera.scheduler.turns import Turns
from tessera.vendors.base import Vendor
from tessera.vendors.binding_annotations import binding_annotations
from tessera.vendors.downward_api import slice_annotations
from tessera.vendors.drafts import BadPod
from tessera.vendors.pod_reader import ENDED
from tessera.wire import keys
from tessera.wire.errors import WireError
from tessera.wire.extender import BindingArgs, decode_binding_args, encode_binding_result
from tessera.wire.objects import Pod

log = structlog.get_logger(__name__)

NOT_LEADING = "this replica is not the leader"
ATTEMPTS = 4
FIRST_PAUSE = 0.2
"""seconds; doubled each time, with jitter"""
LONGEST_PAUSE = 3.0
NOT_FOUND = 404
TOO_MANY = 429
PASSING = frozenset({TOO_MANY, 500, 502, 503, 504})
"""answers after which the same write may succeed"""
LANDED = 65.0
"""seconds: an apiserver gives a request up after 60, so that an unanswered write has its effect by then or never"""


class BindEvent(msgspec.Struct, frozen=True):
    """What the user is told about a binding."""

    namespace: str
    name: str
    uid: str
    error: str
    """empty where it succeeded"""
    node: str

    def text(self) -> str:
        return self.error or f"Successfully binding node [{self.node}] to {self.namespace}/{self.name}"


class Fate(Enum):
    """What became of a write."""

    BOUND = "bound"
    UNBOUND = "unbound"
    LOST = "lost"
    """gone, re-created or bound elsewhere: the placement is void"""
    UNKNOWN = "unknown"


class Outcome(msgspec.Struct, frozen=True):
    """The end of a bind."""

    fate: Fate
    error: str = ""


WRITTEN = Outcome(Fate.BOUND)


class Binder:
    """Binds reserved pods."""

    def __init__(
        self,
        ledger: Ledger,
        vendors: Mapping[str, Vendor],
        *,
        decisions: Filter,
        turns: Turns,
        cluster: Cluster,
        reservation_seconds: float,
        now: Callable[[], float],
        time: Callable[[], float],
        leads: Callable[[], bool] = lambda: True,
        on_bind: Callable[[BindEvent], None] = lambda _event: None,
    ) -> None:
        self._ledger = ledger
        self._vendors = vendors
        self._decisions = decisions
        self._turns = turns
        self._cluster = cluster
        self._reservation_seconds = reservation_seconds
        self._now = now
        self._time = time
        self._leads = leads
        self._on_bind = on_bind
        self._under_way: set[str] = set()
        self._unseen: dict[str, tuple[BindingArgs, float]] = {}
        """by uid: what was written, or may have been, and not shown by the informer since; with the time of that"""

    @property
    def running(self) -> int:
        return len(self._under_way)

    async def answer(self, body: bytes) -> bytes:
        """The answer to a request, errors included."""
        try:
            args = decode_binding_args(body)
        except WireError as error:
            return encode_binding_result(str(error))
        if args.pod_uid in self._under_way:
            return encode_binding_result(f"pod {args.pod_namespace}/{args.pod_name} is being bound already")
        self._under_way.add(args.pod_uid)
        try:
            outcome = await self._bind(args)
        finally:
            self._under_way.remove(args.pod_uid)
        self._on_bind(BindEvent(args.pod_namespace, args.pod_name, args.pod_uid, outcome.error, args.node))
        return encode_binding_result(outcome.error)

    async def _bind(self, args: BindingArgs) -> Outcome:
        prepared = await self._prepare(args)
        if isinstance(prepared, Outcome):
            return prepared
        if not prepared.request.asks_for_devices:
            return await self._bind_plainly(args)
        uid = args.pod_uid
        self._ledger.bind(uid)
        entry = self._ledger.pod(uid)
        assert entry is not None  # it was just prepared
        placement = Placement(args.node, entry.facts.grants)
        writing = False
        try:
            problem = await self._turns.take(args, prepared, placement)
            if problem is not None:
                outcome = Outcome(Fate.UNBOUND, problem)
            elif self._ledger.pod(uid) is not entry:
                outcome = Outcome(Fate.LOST, f"pod {args.pod_namespace}/{args.pod_name} was deleted or bound meanwhile")
            elif not self._still_there(placement):
                fate = Fate.UNKNOWN if uid in self._decisions.uncertain else Fate.LOST
                outcome = Outcome(fate, f"node {args.node} lost its devices")
            else:
                annotations = self._annotations(prepared.request, placement)
                writing = True
                outcome = await self._write(args, annotations, {keys.ASSIGNED_NODE: args.node})
        except KubeError as error:
            outcome = Outcome(Fate.UNBOUND, str(error))
        except BaseException:
            if writing:
                self._unseen[uid] = args, self._time()
            await self._settle(args, Outcome(Fate.UNKNOWN if writing else Fate.UNBOUND))
            raise
        await self._settle(args, outcome)
        return outcome

    async def _bind_plainly(self, args: BindingArgs) -> Outcome:
        """A pod without devices, from a kube-scheduler that sends us all pods."""
        try:
            return await self._write(args, {}, {})
        except KubeError as error:
            return Outcome(Fate.UNBOUND, str(error))

    # -- before the write

    async def _prepare(self, args: BindingArgs) -> Prepared | Outcome:
        """The reservation for this node; where there is none (restart), the pod is placed again, on this node only."""
        prepared = self._decisions.prepared.get(args.pod_uid)
        entry = self._ledger.pod(args.pod_uid)
        if prepared is not None and entry is not None and entry.facts.node == args.node:
            return prepared
        try:
            pod = await self._cluster.get_pod(args.pod_namespace, args.pod_name)
        except KubeError as error:
            return Outcome(Fate.LOST, f"pod {args.pod_namespace}/{args.pod_name} cannot be read: {error}")
        if pod.metadata.uid != args.pod_uid:
            return Outcome(Fate.LOST, f"pod {args.pod_namespace}/{args.pod_name} was re-created")
        if pod.spec.node_name:
            same = pod.spec.node_name == args.node
            return Outcome(Fate.BOUND, "" if same else f"pod is bound to {pod.spec.node_name} already")
        return self._place_again(pod, args.node)

    def _place_again(self, pod: Pod, node: str) -> Prepared | Outcome:
        prepared = self._decisions.prepare(pod)
        if isinstance(prepared, BadPod):
            return Outcome(Fate.LOST, prepared.text)
        request = prepared.request
        if not request.asks_for_devices:
            return prepared
        self._decisions.forget(request.uid)
        view = self._ledger.node(node)
        if view is None:
            return Outcome(Fate.LOST, f"node {node} has no registered devices")
        rooms = self._ledger.rooms(request.namespace, request.vendors)
        answer = fit_pod(view, request, self._ledger.rules, rooms)
        if isinstance(answer, Misfit):
            return Outcome(Fate.LOST, f"pod no longer fits node {node}: {answer.text}")
        self._decisions.keep(prepared, answer)
        return prepared

    def _still_there(self, placement: Placement) -> bool:
        """Whether the node has every card that was promised: it may have changed since, or be gone."""
        cards = self._ledger.devices(placement.node)
        for containers in placement.grants.values():
            for grants in containers:
                for grant in grants:
                    if grant.uuid not in cards:
                        return False
        return True

    def _annotations(self, request: PodRequest, placement: Placement) -> dict[str, str]:
        written = binding_annotations(request, placement, vendors=self._vendors, now=self._now())
        return written | slice_annotations(placement, self._vendors)

    # -- the write

    async def _write(self, args: BindingArgs, annotations: dict[str, str], labels: dict[str, str]) -> Outcome:
        outcome = await self._try_to_write(args, annotations, labels)
        if outcome.fate is not Fate.UNBOUND or args.pod_uid not in self._unseen:
            return outcome
        _, since = self._unseen[args.pod_uid]
        if self._time() < since + LANDED:
            # It is not bound, but it may be in a moment: the cards of a write that can still land are not free.
            return Outcome(Fate.UNKNOWN, outcome.error)
        self._decisions.uncertain.discard(args.pod_uid)
        return outcome

    async def _try_to_write(self, args: BindingArgs, annotations: dict[str, str], labels: dict[str, str]) -> Outcome:
        last = ""
        look_up = False
        asked_to_wait = 0.0
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(max(_pause(attempt), asked_to_wait))
            if not self._leads():
                # Another replica decides by now, and knows nothing of what was reserved here.
                last = NOT_LEADING
                break
            try:
                await self._cluster.bind(
                    args.pod_namespace,
                    args.pod_name,
                    uid=args.pod_uid,
                    node=args.node,
                    annotations=annotations,
                    labels=labels,
                )
            except ApiError as error:
                last = str(error)
                if error.status not in PASSING:
                    return await self._look_up(args, last)
                if error.status != TOO_MANY:
                    look_up = True
                    self._unseen[args.pod_uid] = args, self._time()
                asked_to_wait = min(error.retry_after or 0.0, LONGEST_PAUSE)
            except Unreachable as error:
                last = str(error)
                if error.maybe_done:
                    self._unseen[args.pod_uid] = args, self._time()
                    found = await self._look_up(args, last)
                    if found.fate is not Fate.UNBOUND:
                        return found
            else:
                return WRITTEN
        return await self._look_up(args, last) if look_up else Outcome(Fate.UNBOUND, last)

    async def _look_up(self, args: BindingArgs, error: str) -> Outcome:
        """What the API shows after a write whose effect is not known."""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(_pause(attempt))
            try:
                pod = await self._cluster.get_pod(args.pod_namespace, args.pod_name)
            except KubeError as problem:
                if isinstance(problem, ApiError) and problem.status == NOT_FOUND:
                    return Outcome(Fate.LOST, error)
            else:
                return _fate(pod, args, error)
        return Outcome(Fate.UNKNOWN, error)

    # -- after the write

    async def _settle(self, args: BindingArgs, outcome: Outcome) -> None:
        """Bring ledger, turn and lock to what the outcome means."""
        uid = args.pod_uid
        match outcome.fate:
            case Fate.BOUND:
                self._decisions.settled(uid)
                self._unseen[uid] = args, self._time()
                await self._turns.bound(args)
            case Fate.LOST:
                self._decisions.forget(uid)
                await self._turns.give_back(args)
            case Fate.UNBOUND:
                self._ledger.unbind(uid, deadline=self._time() + self._reservation_seconds)
                await self._turns.give_back(args)
            case Fate.UNKNOWN:
                # Unknown is never free: held like a reservation until the watch shows what happened.
                if self._ledger.unbind(uid, deadline=self._time() + self._reservation_seconds):
                    self._decisions.uncertain.add(uid)

    async def look_after(self) -> None:
        """Look up what the informer should have shown by now, at every tick.

        A pod that came and went between two lists is never shown; nobody else would free what it was given.
        """
        for uid in list(self._unseen):
            args, since = self._unseen.get(uid, (None, 0.0))
            entry = self._ledger.pod(uid)
            if entry is None or entry.observed:
                self._unseen.pop(uid, None)
            elif args is not None and self._time() >= since + LANDED and uid not in self._under_way:
                self._under_way.add(uid)
                try:
                    outcome = await self._glance(args)
                    if self._ledger.pod(uid) is entry and not entry.observed:
                        await self._conclude(args, outcome)
                finally:
                    self._under_way.remove(uid)

    async def _glance(self, args: BindingArgs) -> Outcome:
        try:
            return _fate(await self._cluster.get_pod(args.pod_namespace, args.pod_name), args, "")
        except KubeError as problem:
            gone = isinstance(problem, ApiError) and problem.status == NOT_FOUND
            return Outcome(Fate.LOST if gone else Fate.UNKNOWN)

    async def _conclude(self, args: BindingArgs, outcome: Outcome) -> None:
        uid = args.pod_uid
        match outcome.fate:
            case Fate.BOUND:
                self._ledger.bind(uid)
                await self._settle(args, outcome)
            case Fate.UNBOUND | Fate.LOST:
                del self._unseen[uid]
                await self._settle(args, Outcome(Fate.LOST))
            case Fate.UNKNOWN:
                pass


def _fate(pod: Pod, args: BindingArgs, error: str) -> Outcome:
    if pod.metadata.uid != args.pod_uid:
        return Outcome(Fate.LOST, f"pod {args.pod_namespace}/{args.pod_name} was re-created")
    if pod.status.phase in ENDED:
        # Nobody will tell of it again: what was reserved for it must go now.
        return Outcome(Fate.LOST, f"pod {args.pod_namespace}/{args.pod_name} has ended already")
    if not pod.spec.node_name:
        return Outcome(Fate.UNBOUND, error)
    if pod.spec.node_name == args.node:
        return Outcome(Fate.BOUND)
    return Outcome(Fate.LOST, f"pod is bound to {pod.spec.node_name} already")


def _pause(attempt: int) -> float:
    """Back-off with full jitter, so that binds that failed together do not return together."""
    return random.uniform(0, min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE))
