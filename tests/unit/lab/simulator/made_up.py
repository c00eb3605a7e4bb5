"""Small traces for tests."""

from __future__ import annotations

from tessera_lab.simulator.traces import Trace, TraceNode, TracePod, TraceRequest


def nodes(*cards: int, cpu: int = 64_000, memory: int = 262_144, model: str = "T4") -> tuple[TraceNode, ...]:
    return tuple(TraceNode(f"n{i}", cpu, memory, number, model) for i, number in enumerate(cards))


def pod(name: str, *, cpu: int = 1_000, cards: int = 1, milli: int = 1_000, models: tuple[str, ...] = ()) -> TracePod:
    return TracePod(name, TraceRequest(cpu, 1_024, cards, milli if cards else 0, models))


def trace(made: tuple[TraceNode, ...], *pods: TracePod) -> Trace:
    return Trace("made-up", made, pods)
