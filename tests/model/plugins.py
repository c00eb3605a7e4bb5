"""Nodes of the model at work: kubelets run pods, plugins register cards and hand them over, machines change.

Plugins end a handover as HAMi's do, the phase first and the lock after it; some never do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from tessera.wire.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from tessera.wire.objects import ContainerState, ContainerStatus, Pod, Terminated
from tests.model import claims, device_usage, machines
from tests.model.apiserver import SimulatedApiserver
from tests.model.bindings import MLU_LOCK, Bindings
from tests.model.machines import Machine
from tests.model.tenants import Tenants

STUCK = 13
"""the plugin never reports one pod in so many"""


@dataclass
class Plugins:
    """Methods without arguments are events. They return a description, or None if nothing could happen."""

    api: SimulatedApiserver
    bindings: Bindings
    tenants: Tenants
    rng: random.Random
    machines: dict[str, Machine]
    agents: tuple[str | None, ...]
    time: Callable[[], float]
    now: Callable[[], float]
    publishes: bool = False
    """whether agents offer the cards to claims too"""
    _generation: int = 0

    def start(self) -> None:
        for machine in self.machines.values():
            self._show(machine)

    def in_handover(self, pod: Pod) -> bool:
        return device_usage.is_live(pod) and pod.annotations.get(BIND_PHASE) == PHASE_ALLOCATING

    def is_stuck(self, pod: Pod) -> bool:
        return int(pod.metadata.uid[1:]) % STUCK == 0

    def end_handover(self) -> str | None:
        found = self.tenants.some_pod(lambda pod: self.in_handover(pod) and not self.is_stuck(pod))
        if found is None:
            return None
        failed = self.rng.random() < 0.1
        self.hand_over(found[0], failed=failed)
        return f"{found[0]} {found[1].metadata.uid}{' failed' if failed else ''}"

    def hand_over(self, key: str, *, failed: bool) -> None:
        """Writes the phase first and then releases the lock, as plugins do."""
        pod = self.api.pods.objects[key]
        status = replace(pod.status, phase="Failed" if failed else "Running")
        self.bindings.handing.pop(pod.metadata.uid, None)
        self.api.mark_pod(key, {BIND_PHASE: PHASE_FAILED if failed else PHASE_SUCCESS}, status)
        node = self.api.nodes.objects.get(pod.spec.node_name)
        if node is None:
            return
        mine = f",{pod.metadata.namespace},{pod.metadata.name}"
        released = [NODE_LOCK] if node.annotations.get(NODE_LOCK, "").endswith(mine) else []
        if MLU_LOCK in node.annotations and "MLU" in device_usage.allocation(pod):
            released.append(MLU_LOCK)
        if released:
            self.api.annotate(node.name, dict.fromkeys(released))

    def end_init(self) -> str | None:
        found = self.tenants.some_pod(lambda pod: pod.status.phase == "Running" and bool(pod.spec.init_containers))
        if found is None:
            return None
        key, pod = found
        over = ContainerState(Terminated(0))
        init = [c for c in pod.spec.init_containers or () if c.restart_policy != "Always"]
        done = len(pod.status.init_container_statuses or ()) + 1
        statuses = [ContainerStatus(c.name, over) for c in init[:done]]
        self.api.mark_pod(key, {}, replace(pod.status, init_container_statuses=statuses))
        return f"{key}: {done}"

    def start_pod(self) -> str | None:
        """kubelet starts a pod that has nothing but claims: no plugin has to hand anything over."""
        found = self.tenants.some_pod(
            lambda pod: device_usage.is_live(pod) and BIND_PHASE not in pod.annotations and not pod.status.phase
        )
        if found is None:
            return None
        self.api.mark_pod(found[0], {}, replace(found[1].status, phase="Running"))
        return found[0]

    def end_pod(self) -> str | None:
        found = self.tenants.some_pod(lambda pod: pod.status.phase == "Running")
        if found is None:
            return None
        phase = self.rng.choice(("Succeeded", "Failed"))
        self.api.mark_pod(found[0], {}, replace(found[1].status, phase=phase))
        return f"{found[0]} {phase}"

    def _some_machine(self) -> Machine | None:
        there = [machine for machine in self.machines.values() if machine.name in self.api.nodes.objects]
        return self.rng.choice(there) if there else None

    def change_card(self) -> str | None:
        machine = self._some_machine()
        if machine is None:
            return None
        rng = self.rng
        if machine.mlus and (not machine.cards or rng.random() < 0.5):
            machine.mlu_units = rng.choice((16, 32, 64))
            for position in range(machine.mlus):
                self.bindings.excuse(machine.name, f"{machine.name}-cambricon-mlu-{position}", "it shrank")
            self._show(machine)
            return f"{machine.name}: {machine.mlu_units} units"
        bad = [c for c in machine.cards if c["id"] in machine.hidden | machine.cordoned or not c["health"]]
        if bad and rng.random() < 0.8:
            card = rng.choice(bad)
            card["health"] = True
            machine.hidden.discard(card["id"])
            machine.cordoned.discard(card["id"])
            self._show(machine)
            return f"{card['id']}: repaired"
        card = rng.choice(machine.cards)
        uuid = card["id"]
        change = rng.choice(("hide", "hide", "health", "memory", "slots", "cordon", "mode"))
        if change == "hide":
            machine.hidden ^= {uuid}
        elif change == "health":
            card["health"] = not card["health"]
        elif change == "cordon":
            machine.cordoned ^= {uuid}
        else:
            self.bindings.excuse(machine.name, uuid, "its registration changed")
            if change == "memory":
                card["devmem"] = rng.choice((24576, 40960, 81920))
            elif change == "slots":
                card["count"] = rng.choice((1, 4, 10))
            elif card.get("mode") == "mig":
                card["mode"] = "hami-core"
            elif card.get("migProfiles"):
                card["mode"] = "mig"
        self._show(machine)
        return f"{uuid}: {change} {card}"

    def _show(self, machine: Machine) -> None:
        """The plugin registers; other annotations of the node stay."""
        old = self.api.nodes.objects.get(machine.name)
        node = machine.node()
        if old is not None:
            kept = {key: value for key, value in old.annotations.items() if key not in machines.OWNED}
            metadata = replace(node.metadata, annotations={**kept, **node.annotations})
            node = replace(node, metadata=metadata)
        self.api.put_node(node)
        if self.publishes:
            self._generation += 1
            self.api.slices.put(machine.name, claims.slice_of(machine, self._generation))

    def drop_slice(self) -> str | None:
        """A person deletes the ResourceSlice of a node; its agent publishes it again some time later."""
        if told := self.publish_again():
            return told
        machine = self._some_machine()
        if machine is None:
            return None
        self.api.slices.remove(machine.name)
        return machine.name

    def publish_again(self) -> str:
        """Agents notice that their ResourceSlices are gone."""
        there = [machine for name, machine in self.machines.items() if name in self.api.nodes.objects]
        gone = [machine for machine in there if self.publishes and machine.name not in self.api.slices.objects]
        for machine in gone:
            self._show(machine)
        return ", ".join(f"{machine.name}: published again" for machine in gone)

    def lose_or_return_node(self) -> str | None:
        gone = [machine for machine in self.machines.values() if machine.name not in self.api.nodes.objects]
        machine = self.rng.choice(gone or list(self.machines.values()))
        self.bindings.unsettled[machine.name] = self.time()
        if not gone:
            self.api.nodes.remove(machine.name)
            if self.publishes:
                self.api.slices.remove(machine.name)
            return f"{machine.name} gone"
        self._show(machine)
        return f"{machine.name} back"

    def change_plugin(self) -> str | None:
        broken = [machine for machine in self.machines.values() if machine.garbled or machine.dead]
        if broken:
            machine = self.rng.choice(broken)
            machine.garbled = machine.dead = False
            if machine.name in self.api.nodes.objects:
                self._show(machine)
            return f"{machine.name}: repaired"
        there = self._some_machine()
        if there is None:
            return None
        machine = there
        change = self.rng.choice(("agent", "garbled", "dead"))
        if change == "agent":
            machine.agent = self.rng.choice(self.agents)
            self.bindings.unsettled[machine.name] = self.time()
        elif change == "garbled":
            machine.garbled = True
        else:
            machine.dead = True
        self._show(machine)
        return f"{machine.name}: {change}"

    def report(self) -> str | None:
        machine = self._some_machine()
        return self.report_of(machine) if machine is not None else None

    def report_of(self, machine: Machine) -> str | None:
        if not machine.handshake or machine.dead or machine.name not in self.api.nodes.objects:
            return None
        self.api.annotate(machine.name, {machine.handshake: f"Reported {self.now():.0f}"})
        return machine.name
