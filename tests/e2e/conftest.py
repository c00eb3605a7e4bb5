"""The control plane that the end-to-end tests share.

Its programs are found, or built with Go (`tools/kubernetes/build.py`); without them the tests are skipped. Only logs of
failed runs are kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.e2e import summary
from tests.e2e.control_plane import ControlPlane
from tests.e2e.kubelet_suite import PARTS, KubeletSuite
from tools.kubernetes import build

TOLD = pytest.StashKey[list[str]]()
KUBELET_SUITES = pytest.StashKey[dict[str, KubeletSuite]]()

NewPlane = Callable[[], ControlPlane]
Tell = Callable[[str], None]


def waits_for_kubelet(item: pytest.Item) -> bool:
    return item.path.name == "test_node_real.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=waits_for_kubelet)  # the last one; the others keep their order


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the suite of a real kubelet beside the other tests: it takes as long as they do, and mostly waits."""
    if not session.config.option.collectonly and any(map(waits_for_kubelet, session.items)):
        session.config.stash[KUBELET_SUITES] = {part: KubeletSuite(files) for part, files in PARTS.items()}


def pytest_unconfigure(config: pytest.Config) -> None:
    for suite in config.stash.get(KUBELET_SUITES, {}).values():
        suite.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    told = config.stash.get(TOLD, [])
    for title, said in (("real Kubernetes", told), ("what ran", summary.lines(terminalreporter.stats))):
        if said:
            terminalreporter.section(title)
            for line in said:
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def tell(pytestconfig: pytest.Config) -> Tell:
    """Adds a line to the summary at the end."""
    return pytestconfig.stash.setdefault(TOLD, []).append


@pytest.fixture(scope="session")
def tools(pytestconfig: pytest.Config, tell: Tell) -> Mapping[str, Path]:
    """The programs of Kubernetes, by name."""
    if sys.platform != "linux":
        pytest.skip("the programs of Kubernetes run on Linux only")
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            found = build.ensure(tell=lambda text: print(f"\n{text}", flush=True))
    except build.Missing as missing:
        tell(str(missing))
        pytest.skip(f"no {', '.join(missing.names)} here, and no Go to build them")
    for name, path in found.items():
        tell(f"{name:<24} {_version(path):<10} {path}")
    return found


@pytest.fixture(scope="session")
def helm(pytestconfig: pytest.Config, tell: Tell) -> Path:
    told: list[str] = []
    try:
        found = build.ensure(["helm"], tell=told.append)["helm"]
    except build.Missing as missing:
        tell(str(missing))
        pytest.skip("no helm here, and no Go to build it")
    tell(f"{'helm':<24} {build.HELM.version:<10} {found}")
    return found


@pytest.fixture(scope="session")
def planes(tools: Mapping[str, Path], tell: Tell, request: pytest.FixtureRequest) -> Iterator[NewPlane]:
    """Starts control planes, which end with the session."""
    root = Path(tempfile.mkdtemp(prefix="tessera-e2e-"))
    running: list[ControlPlane] = []

    def new() -> ControlPlane:
        folder = root / f"plane-{len(running)}"
        folder.mkdir()
        running.append(ControlPlane(folder, tools))
        running[-1].start()
        return running[-1]

    yield new
    for plane in running:
        plane.stop()
    if request.session.testsfailed:
        _keep_logs(root, running)
        tell(f"logs of this run: {root}")
    else:
        shutil.rmtree(root)


@pytest.fixture(scope="session")
def plane(planes: NewPlane) -> ControlPlane:
    """The control plane that is shared by all tests that leave it unchanged."""
    return planes()


@pytest.fixture(scope="module")
def own_plane(planes: NewPlane) -> Iterator[ControlPlane]:
    """For a module that installs something for the whole cluster; it ends with the module, since an idle one costs
    processor time too."""
    found = planes()
    yield found
    found.stop()


def _keep_logs(root: Path, planes: list[ControlPlane]) -> None:
    for plane in planes:
        for path in plane.folder.iterdir():
            if path != plane.logs and path.name != "audit.log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _version(path: Path) -> str:
    for question in (["--version"], ["version", "--client"]):
        done = subprocess.run([path, *question], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return done.stdout.splitlines()[0].rpartition(" ")[2]
    return "unknown"
