"""What must hold for the scheduler's memory after every step, and for everything at rest.

The ledger is what a replay of the shown objects gives; what a step touched is looked at after that step, the whole
every now and then. At rest nothing is left behind, the ledger's numbers are those of an independent count, and no pod
waits beside room. Bindings are checked in `bindings`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tessera.core.ledger.audit import BROKEN, AuditFinding, audit, audit_nodes
from tessera.core.model.requests import PodRequest
from tessera.core.search.gang_trial import GangMember
from tessera.core.search.gangs import GangMisfit, plan_gang
from tessera.core.search.node_victims import NodeSearch, Scratch
from tessera.core.search.preemption import Demand
from tessera.core.search.selection import Refused, Selector
from tessera.scheduler.engine import Engine
from tessera.scheduler.features.claims.book import WriteState
from tessera.scheduler.pod_cycle import HOLDS_RESERVATION, CycleState
from tessera.scheduler.requests.pod_claims import ClaimNotReady
from tessera.scheduler.requests.reader import PreparedRequest
from tessera.wire.keys import AGENT, BIND_PHASE, PHASE_ALLOCATING
from tessera.wire.objects import Node, Pod
from tessera.wire.pod_groups import GANG, GANG_SIZE
from tests.model import claims, device_usage, machines
from tests.model.apiserver import SimulatedApiserver
from tests.model.bindings import LIMITS, Bindings
from tests.model.informer_view import InformerView
from tests.support.stepwise_scheduler import assert_cycles_match, claims_of


class Checker:
    """Knows the truth and one process: its memory, and what it was shown."""

    def __init__(
        self,
        api: SimulatedApiserver,
        bindings: Bindings,
        engine: Engine,
        *,
        now: Callable[[], float],
        lag: Callable[[], int],
        has_lease: Callable[[], bool],
    ) -> None:
        """`lag`: what the informers for pods and quotas have not shown yet. `has_lease`: in truth."""
        self._api = api
        self._bindings = bindings
        self._engine = engine
        self._lag = lag
        self._has_lease = has_lease
        self._position = 0
        """in the ledger's log of changes"""
        self.shown = InformerView(engine.vendors, now)

    def saw_node(self, key: str, node: Node | None) -> None:
        agent = node.annotations.get(AGENT) if node is not None else None
        self._bindings.shown_agent(key, agent, gone=node is None)
        self.shown.node(key, node)

    def raced(self, pod: Pod, names: Sequence[str], chosen: Sequence[str]) -> None:
        """A filter call was answered: what others are nominated for is still theirs."""
        ledger, uid = self._engine.ledger, pod.metadata.uid
        claimed = {name for name in names if ledger.nominations.on_node(name, without=uid)}
        if not claimed or not device_usage.wants_devices(pod):
            return
        self._api.races += 1
        self._api.went_beside += not claimed.isdisjoint(chosen)
        for finding in audit_nodes(ledger, sorted(claimed)):
            assert self._is_excused(finding), finding

    def chose(self, pod: Pod, node: str) -> None:
        """The answer of a filter."""
        cycle = self._engine.cycles.get(pod.metadata.uid)
        if not device_usage.wants_devices(pod) or (cycle is not None and cycle.state is CycleState.UNCERTAIN):
            return  # Without devices, or perhaps bound already: then it stays where it is, whatever has become of that.
        held = [facts.problem for facts in self.shown.holders if facts.node == node and facts.problem]
        assert not held, f"a pod was sent to {node}, which is held: {held}"
        assert node in self.shown.nodes, f"{node} has no cards"
        entry = self._engine.ledger.pod(pod.metadata.uid)
        assert entry is not None, "nothing was reserved"
        assert entry.facts.node == node, f"reserved on {entry.facts.node}, not on {node}"

    # -- after every step

    def step(self) -> None:
        """Everything about the nodes that the ledger changed since the last step."""
        engine = self._engine
        arrays = engine.ledger.arrays
        rows = arrays.changed_since(self._position)
        self._position = arrays.now
        self._review_excuses()
        for row in rows or ():
            if arrays.names[row]:
                self._check_node(engine, arrays.names[row])

    def _is_excused(self, finding: AuditFinding) -> bool:
        """Too much granted is no fault of a ledger that has no say, that is still shown pods which have gone since, or
        that keeps what may have been bound in an earlier tenure."""
        if finding.kind == BROKEN:
            return False
        cycles = self._engine.cycles
        if (
            not self._has_lease()
            or self._engine.missing()
            or any(one.placement and not cycles.may_be_written(one) for one in cycles)
        ):
            return True
        if (finding.node, finding.card) in self._bindings.excused:
            return True
        live = {pod.metadata.uid for pod in self._api.pods.objects.values() if device_usage.is_live(pod)}
        live |= {claim.metadata.uid for claim in self._api.claims.objects.values() if claim.status.allocation}
        return any(facts.node == finding.node and facts.uid not in live for facts in self.shown.holders)

    def _check_node(self, engine: Engine, name: str) -> None:
        for finding in audit_nodes(engine.ledger, [name]):
            assert self._is_excused(finding), finding
        view = engine.ledger.node(name)
        shown = {facts.uid: facts for facts in self.shown.holders if facts.node == name}
        problem = next((facts.problem for facts in shown.values() if facts.problem), "")
        assert view is None or not problem or view.facts.problem, f"{name} is not held: {problem}"
        entries = engine.ledger.pods_on(name)
        observed = {entry.facts.uid: entry.facts for entry in entries if entry.observed}
        assert observed == shown, f"on {name} the API shows {shown}, the ledger {observed}"

    def full(self) -> None:
        """The whole ledger is what a replay of the API objects gives, with what is only reserved on top."""
        engine, again = self._engine, self.shown.ledger()
        for entry in engine.ledger.pods():
            if not entry.observed:
                again.observe_pod(entry.facts)
        for nomination in engine.ledger.nominations.all():
            again.nominate(nomination.facts, nomination.victims)
        mine, theirs = engine.ledger.state(), again.state()
        for part in ("nodes", "quotas"):
            assert mine[part] == theirs[part], f"{part}: {_difference(mine[part], theirs[part])}"
        assert {uid: facts for uid, (_, facts) in mine["pods"].items()} == {
            uid: facts for uid, (_, facts) in theirs["pods"].items()
        }
        for finding in audit(engine.ledger):
            assert self._is_excused(finding), finding
        for name in self._bindings.agents:
            for ticket in engine.queue.active_on(name):
                self._check_turn(engine, ticket.uid)
        assert_cycles_match(engine)

    def _check_turn(self, engine: Engine, uid: str) -> None:
        """A pod with a turn is being bound, may have been bound, or is in handover as far as the scheduler knows."""
        entry, pod = engine.ledger.pod(uid), self.shown.raw_pods.get(uid)
        cycle = engine.cycles.get(uid)
        assert cycle is not None, f"{uid} has a turn and no record"
        if cycle.is_checked_out or cycle.state is CycleState.UNCERTAIN:
            return
        assert entry is not None, f"{uid} has a turn and holds nothing"
        if pod is not None:
            assert pod.annotations[BIND_PHASE] == PHASE_ALLOCATING, f"{uid} has a turn that is over"
            assert pod.status.phase != "Running", f"{uid} has a turn and runs"

    def _review_excuses(self) -> None:
        """An excuse ends once the scheduler knows all that people did and has room again even so."""
        engine, api, bindings = self._engine, self._api, self._bindings
        if not (bindings.excused or bindings.excused_quotas) or self._lag() or engine.missing():
            return
        excesses: dict[str, dict[str, str]] = {}
        for name, uuid in list(bindings.excused):
            node = api.nodes.objects.get(name)
            if node is None or self.shown.raw_nodes.get(name) is not node:
                continue
            if any(not entry.observed for entry in engine.ledger.pods_on(name)):
                continue  # Perhaps it was chosen before the change.
            if name not in excesses:
                excesses[name] = bindings.excesses(name)
            if excesses[name] or uuid not in device_usage.capacities(node):
                continue
            view = engine.ledger.node(name)
            known = view is not None and any(card.device.uuid == uuid for card in view.cards)
            if known and not audit_nodes(engine.ledger, [name]):
                del bindings.excused[name, uuid]
        for namespace in list(bindings.excused_quotas):
            rooms = [engine.ledger.quotas.room(namespace, engine.vendors[vendor]) for vendor in LIMITS]
            if not any(amount is not None and amount < 0 for room in rooms for amount in room):
                del bindings.excused_quotas[namespace]

    # -- at rest

    def rest(self, candidates: Callable[[Pod], list[str]]) -> None:
        """Nothing is left behind, and no pod waits beside room."""
        engine, api = self._engine, self._api
        self.full()
        left = [entry.facts.uid for entry in engine.ledger.pods() if not entry.observed]
        assert left == [], f"reservations left behind: {left}"
        assert engine.cycles.count(*HOLDS_RESERVATION) == 0
        left = [record.uid for record in claims_of(engine).book if record.state is not WriteState.IDLE]
        assert left == [], f"writes of claims left behind: {left}"
        self._check_claims()
        left = [ticket.uid for name in self._bindings.agents for ticket in engine.queue.active_on(name)]
        assert left == [], f"turns left behind: {left}"
        assert (engine.cycles.checked_out, engine.queue.active, engine.queue.waiting) == (0, 0, 0)
        left = [cycle.uid for cycle in engine.cycles if cycle.ticket is not None and cycle.ticket.locks]
        assert left == [], f"locks left behind: {left}"
        pending = {pod.metadata.uid: pod for pod in api.pods.objects.values() if not pod.spec.node_name}
        left = [nomination.facts.uid for nomination in engine.ledger.nominations.all()]
        assert left == [], f"nominations left behind: {left}"
        unbound = (CycleState.PENDING, CycleState.REFUSED)
        left = [cycle.uid for cycle in engine.cycles if cycle.state in unbound and cycle.uid not in pending]
        assert left == [], f"records left behind: {left}"
        for name, node in api.nodes.objects.items():
            excesses = self._bindings.excesses(name)
            assert all((name, uuid) in self._bindings.excused for uuid in excesses), excesses
            self._compare(engine, node)
        self._check_gangs(engine, candidates)
        for uid, pod in pending.items():
            if machines.STOCK in (pod.metadata.labels or {}):
                continue
            prepared, names = engine.request_reader.read(pod), candidates(pod)
            if self._waits_for_gang(pod):
                continue
            if isinstance(prepared, ClaimNotReady):
                self._check_waiting(pod, prepared)
            if isinstance(prepared, PreparedRequest) and names:
                if prepared.claims is not None and prepared.claims.node:
                    names = [name for name in names if name == prepared.claims.node]
                    assert prepared.request.asks_for_devices or not names, f"pod {uid} waits where its claims are"
                    self._check_stuck(uid, prepared.claims.uids)
                for request in prepared.variants if names else ():
                    assert request.asks_for_devices, f"pod {uid} needs no device and is not bound"
                    answer = Selector(engine.ledger).select(request, names)
                    assert isinstance(answer, Refused), f"pod {uid} waits beside room on {answer.placement.node}"
                if names:
                    self._check_preemption(engine, prepared.request, names)

    def _check_claims(self) -> None:
        """No claim is allocated for pods that are all gone."""
        live = {
            pod.metadata.uid for pod in self._api.pods.objects.values() if pod.status.phase not in device_usage.OVER
        }
        for claim in self._api.claims.objects.values():
            used = {each.uid for each in claim.status.reserved_for or ()}
            assert used <= live, f"{claim.metadata.name} is reserved for pods that are gone"

    def _check_waiting(self, pod: Pod, problem: ClaimNotReady) -> None:
        """A pod waits for its claims only if people have not made them, or others use them elsewhere."""
        names = {own.resource_claim_name for own in pod.spec.resource_claims or () if own.resource_claim_name}
        named = [self._api.claims.objects.get(f"{pod.metadata.namespace}/{name}") for name in names]
        missing = [claim for claim in named if claim is None or claim.metadata.deletion_timestamp]
        if problem.is_stuck and not missing:
            self._check_stuck(pod.metadata.uid, [claim.metadata.uid for claim in claims.claims_of(self._api, pod)])
        else:
            assert missing, f"pod {pod.metadata.uid} waits: {problem.text}"

    def _check_stuck(self, pod: str, uids: Sequence[str]) -> None:
        """Claims that are allocated where their pod does not run are used there by other pods."""
        found = [claim for claim in self._api.claims.objects.values() if claim.metadata.uid in uids]
        used = [{each.uid for each in claim.status.reserved_for or ()} for claim in found if claim.status.allocation]
        assert any(each - {pod} for each in used), f"pod {pod} waits, and its claims could be released"

    def _check_preemption(self, engine: Engine, request: PodRequest, names: list[str]) -> None:
        """A pod that may preempt waits only if no set of victims helps."""
        priority = request.preempts_below
        assert priority is not None
        for name in names:
            found = NodeSearch(
                Scratch(engine.ledger, engine.victims, free={request.uid}),
                engine.victims,
                request,
                priority=priority,
                node=name,
            ).run()
            assert found is None, f"pod {request.uid} waits, and could be placed without {found.victims}"

    def _gangs(self) -> dict[tuple[str, str], list[Pod]]:
        """Those whose members all exist and live."""
        found: dict[tuple[str, str], list[Pod]] = {}
        for pod in self._api.pods.objects.values():
            if pod.annotations.get(GANG) and pod.status.phase not in device_usage.OVER:
                found.setdefault((pod.metadata.namespace, pod.annotations[GANG]), []).append(pod)
        return {key: pods for key, pods in found.items() if len(pods) == int(pods[0].annotations[GANG_SIZE])}

    def _waits_for_gang(self, pod: Pod) -> bool:
        """Whether no other member is bound and lives: then the gang waits as a whole."""
        namespace, gang = pod.metadata.namespace, pod.annotations.get(GANG)
        bound = [
            other
            for other in self._api.pods.objects.values()
            if (other.metadata.namespace, other.annotations.get(GANG)) == (namespace, gang)
            and other.spec.node_name
            and other.status.phase not in device_usage.OVER
        ]
        return bool(gang) and not bound

    def _check_gangs(self, engine: Engine, candidates: Callable[[Pod], list[str]]) -> None:
        """A gang is bound whole or not at all, and does not wait beside room for all of it."""
        for (namespace, gang), everyone in self._gangs().items():
            # A member without devices is counted, and bound like a single pod.
            pods = [pod for pod in everyone if device_usage.wants_devices(pod) or pod.spec.resource_claims]
            bound = sum(bool(pod.spec.node_name) for pod in pods)
            if any(pod.metadata.uid in self._bindings.edited for pod in pods):
                continue  # A person took the claim of a member away while it was being bound.
            assert bound in (0, len(pods)), f"{bound} of {len(pods)} members of {namespace}/{gang} are bound"
            if bound or not pods or not all(candidates(pod) for pod in pods):
                continue
            if any(map(self._may_share, pods)):
                continue  # Such a gang is refused.
            prepared = [engine.request_reader.read(pod) for pod in pods]
            members = [
                GangMember(each.request, engine.selector.candidates(self._allowed(candidates(pod), each)))
                for each, pod in zip(prepared, pods, strict=True)
                if isinstance(each, PreparedRequest)
            ]
            if len(members) < len(pods):
                continue  # A member that cannot be read is never placed, and so the gang is not.
            for each in prepared:
                if isinstance(each, PreparedRequest) and each.claims is not None and each.claims.node:
                    self._check_stuck(each.request.uid, each.claims.uids)
            answer = plan_gang(engine.selector, members, required=len(members))
            assert isinstance(answer, GangMisfit), f"gang {namespace}/{gang} waits beside room: {answer}"
            self._check_gang_preemption(engine, f"{namespace}/{gang}", members, answer)

    def _may_share(self, pod: Pod) -> bool:
        """Whether the pod has a claim that is not allocated, and was not made for it."""
        found = claims.claims_of(self._api, pod)
        return any(claim.status.allocation is None and not claim.metadata.owner_references for claim in found)

    def _allowed(self, names: list[str], prepared: PreparedRequest) -> list[str]:
        """Where the pod's claims let it go."""
        node = prepared.claims.node if prepared.claims is not None else ""
        return [name for name in names if not node or name == node]

    def _check_gang_preemption(self, engine: Engine, name: str, members: list[GangMember], misfit: GangMisfit) -> None:
        """A gang that may preempt waits only if no set of victims is found."""
        priority = min(member.request.preempts_below or 0 for member in members)
        demand = Demand(members, len(members), priority=priority, fitting=misfit.places)
        found = engine.preemption.find(demand)
        assert found is None, f"gang {name} waits, and could be placed without {found.victims}"

    def _compare(self, engine: Engine, node: Node) -> None:
        """The ledger's numbers are those that are counted from the API objects."""
        view = engine.ledger.node(node.name)
        here = [p for p in self._api.pods.objects.values() if p.spec.node_name == node.name and device_usage.is_live(p)]
        if view is None or view.facts.problem or any(card.held for card in view.cards):
            return
        found = device_usage.loads(here, device_usage.capacities(node))
        claims.add_loads(self._api, node.name, device_usage.capacities(node), found)
        for card in view.cards:
            load = found.get(card.device.uuid, device_usage.Load())
            assert (card.used, card.used_memory, card.used_cores) == (load.slots, load.memory, load.cores)


def _difference(mine: object, theirs: object) -> str:
    if not (isinstance(mine, dict) and isinstance(theirs, dict)):
        return f"{mine} != {theirs}"
    different = [key for key in sorted(mine.keys() | theirs.keys()) if mine.get(key) != theirs.get(key)]
    return "; ".join(f"{key}: {mine.get(key)} != {theirs.get(key)}" for key in different)
