"""Settings of all tests: Hypothesis profiles, time limits, what workers send, and what coverage traces.

Hypothesis runs the same examples every time; HYPOTHESIS_PROFILE=thorough looks for new ones. Every test has a limit in
real time, from pyproject.toml or, for slow kinds of tests, from here. The limits end tests that hang, also on a loaded
machine; they measure nothing.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pkgutil
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, Phase, settings

# Tests with agents in their process start programs by fork, and no child uses gRPC before it executes one. gRPC's
# handlers for forks close what its threads wait for ("epoll_wait error: Bad file descriptor"), and a server died of it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# A slow machine must not fail a test: no deadline, and no complaint about slow generation.
settings.register_profile(
    "steady",
    derandomize=True,
    deadline=None,
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("brief", settings.get_profile("steady"), max_examples=8)
# For tools.mutation: it asks whether a property fails, and not for the smallest example.
settings.register_profile("mutants", settings.get_profile("steady"), phases=(Phase.explicit, Phase.generate))
settings.register_profile(
    "thorough", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
settings.load_profile(PROFILE)

HERE = Path(__file__).parent
E2E_LIMIT_S = 1800.0
"""the first of these tests may have to build Kubernetes"""
MODEL_LIMIT_S = 600.0 * max(
    1.0, int(os.environ.get("MODEL_STEPS", "100000")) / 100_000, int(os.environ.get("MODEL_RACES", "0")) / 2_000
)
PROPERTY_LIMIT_S = 600.0 if PROFILE != "thorough" else 0.0
"""0 is no limit"""
UNMEASURED = frozenset(("bench", "chart", "cli", "lab", "maintenance", "scripts"))
"""folders of unit tests whose subjects have no least coverage in the Makefile; those of inspect test much of core"""


def pytest_configure(config: pytest.Config) -> None:
    # Otherwise the first plugin that asks for the main thread's loop gets a new one that is never closed. Python 3.12
    # and 3.13 also warn about that, and here a warning is an error.
    asyncio.set_event_loop(None)
    if _collects_backwards(config):
        config.args.reverse()


LOGGING = pytest.StashKey[dict[str, Any]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[LOGGING] = structlog.get_config()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Commands set up logging for their process; a test that runs one leaves it to the next test as it was."""
    structlog.configure(**item.stash[LOGGING])


# -- collection

LONGEST_ID = 100
"""of one parameter: some are bodies of megabytes, and ids go to workers, reports and terminals"""


def pytest_make_parametrize_id(val: object) -> str | None:
    if isinstance(val, bytes) and val.startswith(b"-----BEGIN"):
        # Keys and certificates are new in every process: their text would name a test differently in each.
        return "pem"
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        return f"{val[:LONGEST_ID]!a} of {len(val)}"
    return None


def _collects_backwards(config: pytest.Config) -> bool:
    """Every other worker begins with the last folder: in a fresh clone each then rewrites the assertions of one half of
    the tests, and reads from the cache what the other has written."""
    worker: str = getattr(config, "workerinput", {}).get("workerid", "gw0")
    return int(worker.removeprefix("gw")) % 2 == 1 and all(Path(arg).is_dir() for arg in config.args)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Thousands of tests live until the end, and the garbage collector need not look at them again and again."""
    _trace_imports(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _collects_backwards(config):
        # pytest-xdist asks all workers for the same order.
        config.args.reverse()
        folders = [Path(arg).resolve() for arg in config.args]
        items.sort(key=lambda item: next(at for at, each in enumerate(folders) if item.path.is_relative_to(each)))
    for item in items:
        if item.get_closest_marker("timeout") is None and (limit := _limit(item)) is not None:
            item.add_marker(limit)


# -- messages of workers

SHORTEST_TOLD_S = 0.005
"""what `--durations` leaves out"""


def _send_less(config: pytest.Config) -> None:
    """A worker of pytest-xdist does not send what is shown nowhere: most of its messages, a millisecond for each test.

    That is when a test starts and ends, and that its quick setup or teardown passed.
    """
    interactor = next(plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "sendevent"))
    send = interactor.sendevent

    def send_what_is_shown(name: str, **message: Any) -> None:
        match name, message.get("data"):
            case "logstart" | "logfinish", _:
                return
            case "testreport", {"when": "setup" | "teardown", "outcome": "passed", "duration": took}:
                if took < SHORTEST_TOLD_S:
                    return
        send(name, **message)

    interactor.sendevent = send_what_is_shown


# -- coverage


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        _send_less(session.config)
        _stop_early_tracing(session.config)


def _stop_early_tracing(config: pytest.Config) -> None:
    """pytest-cov begins to trace in every worker before it knows that it is in a worker, and never ends that.

    Coverage falls back to that tracing whenever a test pauses its own, so that it would be traced after all.
    """
    controller = _tracing(config)
    if controller is not None:
        controller.cov.stop()


def _trace_imports(config: pytest.Config) -> None:
    """The import of what is measured is traced, the collection of thousands of tests is not."""
    controller = _tracing(config)
    # With workers, nothing is run in this process.
    has_workers = bool(config.getoption("numprocesses", default=None))
    measured = config.option.cov_source if controller is not None and not has_workers else None
    if measured and all(name.startswith("tessera.") for name in measured):
        for name in measured:
            for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
                import_module(module.name)
        controller.pause()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Fixtures are traced where their tests are, which pytest-cov's own marker does not give."""
    controller, wanted = _tracing(item.config), _is_traced(item)
    if controller is not None and controller.started != wanted:
        if wanted:
            controller.resume()
        else:
            controller.pause()


def _tracing(config: pytest.Config) -> Any:
    """What of pytest-cov can pause and resume; None if nothing is measured."""
    plugin = config.pluginmanager.get_plugin("_cov")
    return plugin.cov_controller if plugin is not None else None


def _is_traced(item: pytest.Item) -> bool:
    """Coverage is that of the unit tests, and of the monitor's and of claims, which have most of theirs one level up.

    Tracing would double the time of the others, and what only random examples reach should not count as covered. Nor
    should what tests of another part pass through on their way. Tests that repeat a thing a thousand times, or compare
    with an oracle, have pytest-cov's marker `no_cover`: others reach nearly all of the same lines.
    """
    if _is_property(item) or item.get_closest_marker("no_cover") is not None:
        return False
    kind, *folders = item.path.relative_to(HERE).parts[:-1]
    if kind == "unit":
        return not folders or folders[0] not in UNMEASURED
    return item.path.name in ("test_monitor.py", "test_claims.py")


# -- time limits


def _limit(item: pytest.Item) -> pytest.MarkDecorator | None:
    match _kind(item):
        case kind if kind == "property" or _is_property(item):
            # The signal method raises inside the example; Hypothesis would then run the example again without a limit.
            return pytest.mark.timeout(PROPERTY_LIMIT_S, method="thread")
        case "e2e":
            return pytest.mark.timeout(E2E_LIMIT_S)
        case "model":
            return pytest.mark.timeout(MODEL_LIMIT_S)
        case _:
            return None


def _is_property(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def _kind(item: pytest.Item) -> str:
    """The folder of tests/ that it is in."""
    return item.path.relative_to(HERE).parts[0]
