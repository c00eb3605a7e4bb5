"""One control-plane machine of the run: a replica of Tessera, its kube-scheduler, and their networks and clock.

Both programs reach an apiserver through a proxy of their own, and kube-scheduler reaches Tessera through a third one.
Tessera's wall clock is that of libfaketime, where it is installed, and can be moved; clocks that only measure
durations are never moved, as on a real machine.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.e2e.cluster import end_tasks
from tests.e2e.control_plane import ControlPlane
from tests.e2e.processes import Program
from tests.e2e.replica import FromFiles, Replica
from tests.robustness.api_proxy import ApiProxy, ExtenderProxy
from tests.robustness.history import History

RESTART_S = 1.0
"""between two looks for programs that have ended"""
LEASE_S = 4
"""short, so that the lease moves often"""
LIBFAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


def find_libfaketime() -> Path | None:
    root = Path("/")
    return next((path for pattern in LIBFAKETIME for path in root.glob(pattern[1:])), None)


class Machine:
    """`name` is also its host name, by which the lease says who leads."""

    def __init__(
        self, plane: ControlPlane, history: History, *, name: str, certificates: FromFiles, rng: random.Random
    ) -> None:
        self.name = name
        self.tessera_network = ApiProxy(plane, history, replica=name, rng=rng)
        self.kube_scheduler_network = ApiProxy(plane, history, replica=f"{name}/kube-scheduler", rng=rng)
        self._plane = plane
        self._history = history
        self._certificates = certificates
        self._clock = plane.folder / f"clock-{name}"
        self._library = find_libfaketime()

    @property
    def networks(self) -> Sequence[ApiProxy]:
        return (self.tessera_network, self.kube_scheduler_network)

    @property
    def programs(self) -> Sequence[Program]:
        return (self.replica.tessera, self.replica.kube_scheduler)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Starts both programs; they end with the block."""
        plane = self._plane
        self.move_clock(0.0)
        async with AsyncExitStack() as stack:
            for network in self.networks:
                await stack.enter_async_context(network.serve())
            kubeconfig = self.tessera_network.kubeconfig(plane.kubeconfig_of_account(self._certificates.account))
            self.replica = Replica(
                plane,
                f"--kubeconfig={kubeconfig}",
                label=self.name,
                certificates=self._certificates,
                host=self.name,
                environ=self._environ(),
                lease_s=LEASE_S,
            )
            self.extender = ExtenderProxy(self.replica.extender_url, self._history, replica=self.name)
            await stack.enter_async_context(self.extender.serve())
            self.replica.route(
                kubeconfig=self.kube_scheduler_network.kubeconfig(plane.kubeconfig("kube-scheduler")),
                extender_url=self.extender.url,
            )
            restarting = asyncio.create_task(self._restart_ended())
            try:
                for program in self.programs:
                    program.start()
                yield
            finally:
                await end_tasks([restarting])
                self.replica.kill()

    async def _restart_ended(self) -> None:
        """As kubelet does; kube-scheduler ends by itself when it has lost the lease."""
        while True:
            await asyncio.sleep(RESTART_S)
            for program in self.programs:
                if program.has_ended:
                    program.start()

    def heal(self) -> None:
        """Everything runs and flows again; what is held arrives in its own time."""
        self.move_clock(0.0)
        self.extender.binds_to_hold = 0
        for network in self.networks:
            network.upstream = self._plane.url
            network.faults.heal()
        for program in self.programs:
            if program.is_running:
                program.send(signal.SIGCONT)
            else:
                program.start()

    def move_clock(self, seconds: float) -> None:
        """Moves Tessera's wall clock away from the real time; it notices within a second."""
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(f"{seconds:+.0f}")
        fresh.replace(self._clock)

    def _environ(self) -> dict[str, str]:
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
