"""Mutation testing of the modules that keep promises: changes one thing in the source and runs the tests that guard it.

    python -m tools.mutation                       all modules
    python -m tools.mutation core/ledger core/fit  those of some folders, or some of them; core/fit/fit:120 = one line
    python -m tools.mutation --sample 50           50 mutants of each module, evenly spread

A mutant that no test notices is a survivor: a missing test, or a change that no caller can see. The second kind is
listed with its reason in tools/mutation_equivalent.txt. Tests are collected once for all modules that the same tests
guard, and run once to learn which of them call which function. Each mutant is a fork of that process, in which the
functions and classes of the module get the code of the changed source; the tests that call the changed function run,
the fastest first. Nothing on disk changes. A mutant that takes much longer than its tests usually do counts as caught.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import EnumType
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryFile
from types import FunctionType, ModuleType
from typing import Any, TextIO

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "tessera"
EQUIVALENT = Path(__file__).with_name("mutation_equivalent.txt")
CAUGHT_AT_LEAST = 0.95
"""of the mutants that are not equivalent"""
PATIENCE = 4.0
"""times the usual duration of the tests, after which a mutant is stuck"""
LEAST_PATIENCE_S = 20.0
SHORTEST = 20
"""lines of a module of the core that is in the table; shorter ones say what a folder is for"""

CORE_MODULES = sorted(
    each.relative_to(SOURCES).with_suffix("").as_posix()
    for each in (SOURCES / "core").rglob("*.py")
    if len(each.read_text(encoding="utf-8").splitlines()) > SHORTEST
)
CORE = ("unit/core", "property/core/policies", "property/core/search/test_candidate_sets.py",
        "property/core/search/test_near_misses.py", "property/core/search/test_advice.py",
        "property/core/search/test_gangs.py", "property/core/search/test_defragmentation.py",
        "property/core/ledger/test_found_by_properties.py", "property/core/ledger/test_transactions.py",
        "unit/scheduler/requests/test_demand_tracker.py", "unit/scheduler/features/preemption",
        "unit/scheduler/features/gangs/test_preemption.py", "unit/scheduler/requests/test_host_resources.py",
        "unit/inspect/test_explanation.py", "unit/inspect/test_preemption.py")  # fmt: skip
"""without the longest properties: a survivor costs the whole run of its tests"""

GUARDED_BY: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(CORE_MODULES, CORE),
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
    "scheduler/features/gangs/gang": ("unit/scheduler/features/gangs/test_gang.py",),
    "scheduler/binder": ("unit/scheduler/test_binder.py", "unit/scheduler/test_binder_lost_answers.py",
                         "unit/scheduler/test_binder_turns.py", "unit/scheduler/test_binder_versions.py",
                         "unit/scheduler/test_takeover.py", "unit/scheduler/test_failpoints.py",
                         "unit/scheduler/test_framework.py",
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


# -- a changed module in place of the one that was imported

PLAIN = (bool, int, float, str, type(None))


def change(module: ModuleType, source: str) -> None:
    """Give the functions and classes of a module the code of another source. They stay the same objects, so whatever
    imported them is changed as well."""
    new: dict[str, Any] = {"__name__": module.__name__, "__file__": module.__file__, "__package__": module.__package__}
    exec(compile(source, str(module.__file__), "exec"), new)
    _change_members(module, vars(module), new, of=module.__name__)


def _change_members(owner: object, old: Mapping[str, Any], new: Mapping[str, Any], *, of: str) -> None:
    for name, now in list(new.items()):
        was = old.get(name)
        if isinstance(was, type) and isinstance(now, type):
            if was.__module__ == of and was is not owner:
                _change_members(was, vars(was), vars(now), of=of)
                if isinstance(was, EnumType) and isinstance(now, EnumType):
                    for member in was.__members__:
                        _change_values(vars(was[member]), vars(now[member]))
        elif isinstance(owner, type) and not name.startswith("__") and isinstance(was, PLAIN) and was != now:
            setattr(owner, name, now)
        else:
            function, fresh = _function(was), _function(now)
            is_own = isinstance(owner, type) or function is None or function.__module__ == of
            if function is not None and fresh is not None and is_own:
                _change_function(function, fresh)
                getattr(was, "cache_clear", int)()


def _function(found: Any) -> FunctionType | None:
    """What is behind a property, a decorator that keeps what it wraps, or a method of a class."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    found = getattr(found, "__func__", found)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    return found if isinstance(found, FunctionType) else None


def _change_function(old: FunctionType, new: FunctionType) -> None:
    # What surrounds it may be used no more, and a function takes only code with as many variables of that.
    old.__code__ = new.__code__.replace(co_freevars=old.__code__.co_freevars)
    pairs = zip(old.__defaults__ or (), new.__defaults__ or (), strict=True)
    old.__defaults__ = tuple(now if isinstance(now, PLAIN) else was for was, now in pairs) or None
    for name, value in (new.__kwdefaults__ or {}).items():
        if isinstance(value, PLAIN) and old.__kwdefaults__ is not None:
            old.__kwdefaults__[name] = value


def _change_values(old: Any, new: Mapping[str, Any]) -> None:
    for name, value in list(old.items()):
        if name not in new:
            del old[name]
        elif not name.startswith("_") and isinstance(value, PLAIN):
            old[name] = new[name]


# -- the tests


@dataclass(frozen=True, slots=True)
class Reached:
    """What one test does without a mutation."""

    item: pytest.Item
    took_s: float
    lines: Mapping[str, frozenset[int]]
    """that it runs, by file of the modules"""


class Trials:
    """A plugin of pytest: instead of running each test once, it tries all mutants of some modules."""

    def __init__(self, try_all: Callable[[Sequence[Reached]], None], files: frozenset[str]) -> None:
        self._try_all = try_all
        self._files = files

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise pytest.UsageError("tests cannot be collected")
        self._try_all(self._reach(session))
        return True

    def _reach(self, session: pytest.Session) -> list[Reached]:
        """Run all tests once, in a fork, so that the mutants find nothing that they left."""
        with TemporaryFile() as answer:
            child = os.fork()
            if child == 0:
                answer.write(pickle.dumps(self._run_all(session)))
                answer.flush()
                os._exit(0)
            os.waitpid(child, 0)
            answer.seek(0)
            found = pickle.loads(answer.read())
        if not found:
            raise pytest.UsageError("tests fail without a mutation")
        return [Reached(item, *each) for item, each in zip(session.items, found, strict=True)]

    def _run_all(self, session: pytest.Session) -> list[tuple[float, dict[str, frozenset[int]]]]:
        for file in self._files:
            change(_module(file), Path(file).read_text(encoding="utf-8"))
        # What an earlier test left in a cache is computed in none of the later ones, which rely on it as well.
        known = [each for file in self._files for each in vars(_module(file)).values() if hasattr(each, "cache_clear")]
        took, measured = [], coverage.Coverage(data_file=None, include=sorted(self._files), config_file=False)
        measured.start()
        for number, (item, after) in enumerate(_in_order(session.items)):
            measured.switch_context(str(number))
            for cached in known:
                cached.cache_clear()
            start = time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            took.append(time.monotonic() - start)
        measured.stop()
        if session.testsfailed:
            return []
        lines: list[dict[str, set[int]]] = [{} for _ in took]
        for file in self._files:
            for line, tests in measured.get_data().contexts_by_lineno(file).items():
                for test in filter(None, tests):
                    lines[int(test)].setdefault(file, set()).add(line)
        frozen = ({file: frozenset(some) for file, some in each.items()} for each in lines)
        return list(zip(took, frozen, strict=True))


def _in_order(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=True)


def _module(file: str) -> ModuleType:
    return importlib.import_module(".".join(Path(file).relative_to(SOURCES.parent).with_suffix("").parts))


def run_tests(name: str, source: str, tests: Sequence[pytest.Item]) -> int:
    """Starts the tests in a fork, with this text as the module, and answers its process id."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            change(_module(str(SOURCES / f"{name}.py")), source)
            for item, after in _in_order(tests):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                if item.session.testsfailed:
                    os._exit(1)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child


def tests_fail(child: int) -> bool | None:
    """None while they run."""
    done, status = os.waitpid(child, os.WNOHANG)
    return status != 0 if done else None


def end(child: int) -> None:
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def listed_as_equivalent() -> dict[tuple[str, str], str]:
    """The reasons by module and mutant, from lines `module | line of the source | change | reason`."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return {(row[0], " | ".join(row[1:-1])): row[-1] for row in rows}


def statements(source: str) -> dict[int, range]:
    """By line of a function, the lines of the statement that it belongs to: of a compound one those of its head, and
    for the head of a function all of it."""
    found: dict[int, range] = {}
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    for node, is_inside in waiting:
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.stmt) and (is_inside or is_function):
            body: Sequence[ast.stmt] = getattr(node, "body", ())
            end = (node.end_lineno or node.lineno) + 1
            head = range(node.lineno, body[0].lineno if body else end)
            found.update(dict.fromkeys(head, range(node.lineno, end) if is_function else head))
        waiting += [(each, is_inside or is_function) for each in ast.iter_child_nodes(node)]
    return found


def survivors(name: str, mutants: Sequence[Mutant], reached: Sequence[Reached], jobs: int) -> Iterator[Mutant]:
    """The mutants of a module that its tests do not notice; several are tried at a time."""
    file = SOURCES / f"{name}.py"
    together = statements(file.read_text(encoding="utf-8"))
    # The tests that are named after the module mostly notice first.
    callers = sorted(
        (each for each in reached if str(file) in each.lines),
        key=lambda each: (file.stem not in each.item.path.stem, each.took_s),
    )
    waiting, running = deque(mutants), dict[int, tuple[Mutant, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.popleft()
            lines = together.get(mutant.line)
            tests = [each for each in callers if lines is None or not each.lines[str(file)].isdisjoint(lines)]
            limit_s = max(LEAST_PATIENCE_S, PATIENCE * sum(each.took_s for each in tests))
            child = run_tests(name, mutant.source, [each.item for each in tests])
            running[child] = mutant, time.monotonic() + limit_s
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


def try_modules(chosen: Sequence[tuple[str, Sequence[Mutant]]], jobs: int, out: TextIO) -> bool:
    """Collect the tests that guard these modules, which are the same for all, and try their mutants. False if one
    catches too few."""
    good = True

    def try_all(reached: Sequence[Reached]) -> None:
        nonlocal good
        for name, mutants in chosen:
            start, alive = time.monotonic(), 0
            for mutant in survivors(name, mutants, reached, jobs):
                alive += 1
                print(f"  survived: {name}.py:{mutant.line}: {mutant}", file=out, flush=True)
            share = 1 - alive / len(mutants)
            good = good and share >= CAUGHT_AT_LEAST
            listed = sum(module == name for module, _ in listed_as_equivalent())
            took = f"{time.monotonic() - start:.0f} s"
            caught = f"{len(mutants) - alive} of {len(mutants)} caught ({share:.1%})"
            print(f"{name}: {caught}, {listed} equivalent, {took}", file=out, flush=True)

    trials = Trials(try_all, frozenset(str(SOURCES / f"{name}.py") for name, _ in chosen))
    tests = [str(ROOT / "tests" / each) for each in GUARDED_BY[chosen[0][0]]]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return pytest.main([*options, *tests], plugins=[trials]) == pytest.ExitCode.OK and good


def in_fork(chosen: Sequence[tuple[str, Sequence[Mutant]]], jobs: int) -> bool:
    """In a process of its own, since tests are collected once in each."""
    with TemporaryFile("w+") as log:
        child = os.fork()
        if child == 0:
            out = os.fdopen(os.dup(1), "w")
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                good = try_modules(chosen, jobs, out)
            except BaseException:
                traceback.print_exc()
                good = False
            sys.stdout.flush()
            os._exit(not good)
        _, status = os.waitpid(child, 0)
        log.seek(0)
        said = log.read()
    if "no tests ran" not in said:
        print(said)
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description="Changes one thing at a time and looks whether a test notices."
    )
    known = ", ".join(GUARDED_BY)
    parser.add_argument("modules", nargs="*", help=f"folders, or some of {known}; MODULE:LINE for one line")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tried at a time (%(default)s)")
    parser.add_argument("--sample", type=int, default=0, help="mutants per module, evenly spread; 0 = all")
    arguments = parser.parse_args()
    lines: dict[str, int] = {}
    for chosen in arguments.modules or GUARDED_BY:
        name, _, line = chosen.partition(":")
        below = [each for each in GUARDED_BY if each.startswith(f"{chosen}/")]
        if not below and (name not in GUARDED_BY or not (line.isdecimal() or chosen == name)):
            parser.error(f"{chosen} is not FOLDER, MODULE or MODULE:LINE; modules are {known}")
        lines.update(dict.fromkeys(below, 0) or {name: int(line or 0)})
    os.environ.setdefault("HYPOTHESIS_PROFILE", "mutants")
    equivalent, work = listed_as_equivalent(), []
    for name, at in lines.items():
        mutants = Mutation((SOURCES / f"{name}.py").read_text(encoding="utf-8")).found
        mutants = [each for each in mutants if at in (0, each.line) and (name, str(each)) not in equivalent]
        if not mutants:
            parser.error(f"{name} has nothing to change, or only what is listed in {EQUIVALENT.name}")
        if 0 < arguments.sample < len(mutants):
            mutants = [mutants[number * len(mutants) // arguments.sample] for number in range(arguments.sample)]
        work.append((name, mutants))
    groups: dict[Sequence[str], list[tuple[str, Sequence[Mutant]]]] = {}
    for name, mutants in work:
        groups.setdefault(GUARDED_BY[name], []).append((name, mutants))
    results = [in_fork(group, max(arguments.jobs, 1)) for group in groups.values()]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
