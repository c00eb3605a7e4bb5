"""Mutation testing of the modules that keep promises: changes one thing in the source and runs the tests that guard it.

    python -m tools.mutation                       all modules
    python -m tools.mutation core/ledger core/fit  those of some folders, or some of them; core/fit/fit:120 = one line
    python -m tools.mutation --sample 50           50 mutants of each module, evenly spread

A mutant that no test notices is a survivor: a missing test, or a change that no caller can see. The second kind is
listed with its reason in tools/mutation_equivalent.txt. Each mutant runs in a forked process that imports the changed
source in place of the file; nothing on disk changes. A mutant that takes much longer than the tests usually do counts
as caught.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "tessera"
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.txt")
CAUGHT_AT_LEAST = 0.95
"""of the mutants that are not equivalent"""
PATIENCE = 4.0
"""times the usual duration of the tests, after which a mutant is stuck"""
LEAST_PATIENCE_S = 20.0

PRELOADED = ("aiohttp", "msgspec", "numpy", "structlog")
"""imported once, before the forks"""

GUARDED_BY: Mapping[str, Sequence[str]] = {
    "core/ledger/ledger": ("unit/core/ledger", "unit/core/fit/test_quota.py", "unit/core/fit/test_sharing_rules.py",
                           "unit/core/search/test_mig_selection.py"),
    "core/fit/fit": ("unit/core/fit", "unit/core/model/test_grants.py", "unit/core/search/test_selection.py"),
    "core/fit/card_rules/pods_per_card": ("unit/core/fit/test_pods_per_card.py",
                                          "property/core/fit/test_card_rules.py"),
    "core/ledger/transaction": ("property/core/ledger/test_transactions.py",),
    "core/model/arrays": ("unit/core/model", "unit/core/ledger", "unit/core/fit", "unit/core/policies",
                          "unit/core/search/test_mig_selection.py", "unit/core/search/test_selection.py",
                          "unit/scheduler/requests/test_host_resources.py"),
    "core/ledger/holders": ("unit/core/ledger/test_holders.py", "unit/core/ledger/test_ledger.py"),
    "core/ledger/nominations": ("unit/core/ledger", "unit/scheduler/features/preemption"),
    "core/search/node_victims": ("unit/scheduler/features/preemption", "unit/inspect/test_preemption.py"),
    "scheduler/features/preemption/preemptor": ("unit/scheduler/features/preemption",
                                                "unit/scheduler/eviction/test_evictor.py"),
    "scheduler/eviction/preemption_loop": ("unit/scheduler/eviction/test_preemption_loop.py",
                                           "unit/scheduler/features/preemption",
                                           "unit/scheduler/features/gangs/test_preemption.py"),
    "scheduler/features/gangs/preemption": ("unit/scheduler/features/gangs/test_preemption.py",
                                           "unit/scheduler/features/gangs/test_preemption_races.py"),
    "scheduler/features/moves/holds": ("unit/scheduler/features/moves",),
    "scheduler/eviction/evictor": ("unit/scheduler/eviction/test_evictor.py", "unit/scheduler/features/preemption"),
    "scheduler/eviction/victim_book": ("unit/scheduler/eviction/test_victim_book.py",
                                       "unit/scheduler/features/preemption"),
    "core/search/gang_trial": ("unit/core/search/test_gang_trial.py",),
    "scheduler/features/gangs/gang": ("unit/scheduler/features/gangs/test_gang.py",),
    "scheduler/binder": ("unit/scheduler/test_binder.py", "unit/scheduler/test_binder_lost_answers.py",
                         "unit/scheduler/test_binder_turns.py", "unit/scheduler/test_binder_versions.py",
                         "unit/scheduler/test_takeover.py", "unit/scheduler/test_failpoints.py",
                         "model/test_regressions.py"),
    "scheduler/versioned_write": ("unit/scheduler/test_binder.py", "unit/scheduler/test_binder_lost_answers.py",
                                  "unit/scheduler/test_binder_versions.py",
                                  "unit/scheduler/features/claims/test_writer.py"),
    "scheduler/queue/node_lock": ("unit/scheduler/queue/test_node_lock.py", "unit/scheduler/test_binder_turns.py"),
    "kube/leases": ("unit/kube/test_leases.py",),
    "http11/client": ("unit/http11/test_client.py", "unit/kube/test_connection_pool.py", "unit/kube/test_proxies.py"),
    "node/handover/allocator": ("unit/node/handover",),
    "node/handover/allocation_state": ("unit/node/handover",),
    "node/handover/checkpoint": ("unit/node/handover/test_checkpoint.py", "unit/node/handover/test_restarts.py"),
}  # fmt: skip
"""each module, and the tests below tests/ that guard its promises"""

COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.BitOr: "&", ast.BitAnd: "|"
}  # fmt: skip
FUNCTIONS: Mapping[str, str] = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    line: int
    text: str
    """the line as it is"""
    what: str
    source: str
    """of the whole module"""

    def __str__(self) -> str:
        return f"{self.text} | {self.what}"


class Mutation(ast.NodeVisitor):
    """Collects the places of a module that can be changed, as edits of its text."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines(keepends=True)
        self._offsets = [0]
        for line in self._lines:
            self._offsets.append(self._offsets[-1] + len(line.encode()))
        self._bytes = source.encode()
        self.found: list[Mutant] = []
        for statement in ast.parse(source).body:
            # Constants of a module are sizes and times that somebody chose; another number breaks no promise.
            if not isinstance(statement, ast.Assign | ast.AnnAssign):
                self.visit(statement)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._offsets[node.lineno - 1] + node.col_offset,
            self._offsets[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()

    def _replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        start, end = self._span(node)
        source = (self._bytes[:start] + new.encode() + self._bytes[end:]).decode()
        old = " ".join(self._text(node).split())
        what = f"{old[:70]} -> {' '.join(new.split())[:70]}"
        self.found.append(Mutant(node.lineno, self._lines[node.lineno - 1].strip(), what, source))

    # -- what is not changed: types, defaults of types, messages, and what only people read

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arguments(self, node: ast.arguments) -> None:
        for default in (*node.defaults, *(each for each in node.kw_defaults if each is not None)):
            self.visit(default)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Without decorators, which say how a class is made."""
        for statement in node.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name not in ("__repr__", "__str__"):
            self.visit(node.args)
            for statement in node.body:
                self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _skip(self, node: ast.AST) -> None:
        """Messages, and what is written for readers and for mypy: their words are not a promise."""

    visit_JoinedStr = visit_Assert = _skip

    # -- what is changed

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or self._text(node).startswith(("log.", "self._log.")):
            return
        if not isinstance(node.value, ast.Yield):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def _drop(self, node: ast.stmt) -> None:
        self._replace(node, "pass")

    visit_Raise = visit_Delete = visit_Break = visit_Continue = _drop

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets):
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            self._replace(node.test, f"not ({self._text(node.test)})")
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and (new := COMPARISONS.get(type(node.ops[0]))) is not None:
            self._replace(node, f"({self._text(node.left)} {new} {self._text(node.comparators[0])})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        word = " or " if isinstance(node.op, ast.And) else " and "
        self._replace(node, f"({word.join(f'({self._text(each)})' for each in node.values)})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if (new := ARITHMETIC.get(type(node.op))) is not None:
            self._replace(node, f"({self._text(node.left)} {new} {self._text(node.right)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and (new := FUNCTIONS.get(node.func.id)) is not None:
            self._replace(node.func, new)
        self.generic_visit(node)


class ChangedModule(MetaPathFinder, InspectLoader):
    """Finds one module in a text instead of its file, also where its package imports it."""

    def __init__(self, name: str, source: str) -> None:
        self._name = name
        self._source = source

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == self._name else None

    def get_source(self, fullname: str) -> str:
        return self._source


def run_tests(name: str, source: str, tests: Sequence[str]) -> int:
    """Starts the tests in a fork, with this text as the module, and answers its process id."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _run_tests(name, source, tests)
    return child


def tests_fail(child: int) -> bool | None:
    """None while they run."""
    done, status = os.waitpid(child, os.WNOHANG)
    return status != 0 if done else None


def end(child: int) -> None:
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _run_tests(name: str, source: str, tests: Sequence[str]) -> None:
    """In the child; does not return."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        sys.meta_path.insert(0, ChangedModule(f"tessera.{name.replace('/', '.')}", source))
        os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]) != 0)
    except BaseException:
        os._exit(1)


def listed_as_equivalent() -> dict[tuple[str, str], str]:
    """The reasons by module and mutant, from lines `module | line of the source | change | reason`."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {(row[0], " | ".join(row[1:-1])): row[-1] for row in rows}


def survivors(name: str, mutants: Sequence[Mutant], jobs: int) -> Iterator[Mutant]:
    """The mutants of a module that its tests do not notice; several are tried at a time."""
    tests = [str(ROOT / "tests" / each) for each in GUARDED_BY[name]]
    source = (SOURCES / f"{name}.py").read_text(encoding="utf-8")
    limit_s = max(LEAST_PATIENCE_S, PATIENCE * usual_duration(name, source, tests))
    waiting, running = deque(mutants), dict[int, tuple[Mutant, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.popleft()
            running[run_tests(name, mutant.source, tests)] = mutant, time.monotonic() + limit_s
        for child, (mutant, deadline) in list(running.items()):
            failed = tests_fail(child)
            if failed is None and time.monotonic() > deadline:
                end(child)
                failed = True
            if failed is not None:
                del running[child]
            if failed is False:
                yield mutant
        time.sleep(0.01)


def usual_duration(name: str, source: str, tests: Sequence[str]) -> float:
    start = time.monotonic()
    _, status = os.waitpid(run_tests(name, source, tests), 0)
    if status:
        raise SystemExit(f"mutation: the tests of {name} fail without a mutation")
    return time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description="Changes one thing at a time and looks whether a test notices."
    )
    parser.add_argument(
        "modules", nargs="*", help=f"folders or modules of {', '.join(GUARDED_BY)}; MODULE:LINE for one line"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tried at a time (%(default)s)")
    parser.add_argument("--sample", type=int, default=0, help="mutants per module, evenly spread; 0 = all")
    arguments = parser.parse_args()
    chosen_modules: list[str] = []
    for chosen in arguments.modules:
        name, _, line = chosen.partition(":")
        below = [each for each in GUARDED_BY if each.startswith(f"{chosen}/")]
        if not below and (name not in GUARDED_BY or not (line.isdecimal() or chosen == name)):
            parser.error(f"{chosen} is not FOLDER, MODULE or MODULE:LINE; modules are {', '.join(GUARDED_BY)}")
        chosen_modules += below or [chosen]
    for each in PRELOADED:
        importlib.import_module(each)
    equivalent, failed = listed_as_equivalent(), False
    for chosen in chosen_modules or GUARDED_BY:
        name, _, line = chosen.partition(":")
        mutants = Mutation((SOURCES / f"{name}.py").read_text(encoding="utf-8")).found
        mutants = [each for each in mutants if not line or each.line == int(line)]
        mutants = [each for each in mutants if (name, str(each)) not in equivalent]
        if not mutants:
            parser.error(f"{chosen} has nothing to change, or only what is listed in {EQUIVALENT.name}")
        if 0 < arguments.sample < len(mutants):
            mutants = [mutants[number * len(mutants) // arguments.sample] for number in range(arguments.sample)]
        start, alive = time.monotonic(), 0
        for mutant in survivors(name, mutants, max(arguments.jobs, 1)):
            alive += 1
            print(f"  survived: {name}.py:{mutant.line}: {mutant}", flush=True)
        share = 1 - alive / max(len(mutants), 1)
        failed = failed or share < CAUGHT_AT_LEAST
        listed = sum(module == name for module, _ in equivalent)
        took = f"{time.monotonic() - start:.0f} s"
        print(f"{name}: {len(mutants) - alive} of {len(mutants)} caught ({share:.1%}), {listed} equivalent, {took}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
