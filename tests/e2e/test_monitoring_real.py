"""Dashboards and alerts, judged by a real Prometheus: every query returns data, every alert fires when it should.

Prometheus scrapes the demo's scheduler after its story, a monitor of one of its nodes, and an agent.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tessera.kube.access import load_access
from tessera.kube.client import KubeClient
from tessera.monitor.device_usage import CardUtilization, HostUsage
from tessera.monitor.process import MonitorProcess
from tessera.monitor.settings import MonitorSettings
from tessera.scheduler.settings import Settings
from tessera.services.value_types import Address
from tessera.wire.pod_devices import decode_pod_devices
from tessera_lab.demo import cluster as demo
from tessera_lab.demo.story import STORY
from tessera_lab.sandbox.objects import annotations_of, uid_of
from tests.e2e.conftest import Tell
from tests.e2e.processes import Program
from tests.support.agent import agent_node
from tests.support.event_loops import on_uvloop
from tests.support.network import free_ports
from tests.unit.monitor.builders import Slot, region
from tools import chart
from tools.kubernetes import build

DASHBOARDS = sorted((chart.CHART / "files" / "dashboards").glob("*.json"))
ALERTS = chart.CHART / "files" / "alerts.yaml"
VARIABLES = {
    "$__rate_interval": "1m",
    "$__range": "1h",
    "$node": ".*",
    "$namespace": ".*",
    "${node_name}": ".*",
    "${uuid}": ".*",
}
"""what Grafana puts into queries, with everything chosen"""
HAMI = (
    'count(hami_gpu_memory_limit_bytes{node=~"$node"})',
    'sum(hami_gpu_memory_limit_bytes{node=~"$node"})',
    'sum(hami_gpu_memory_allocated_bytes{node=~"$node"})',
    '100 * sum(hami_gpu_memory_allocated_bytes{node=~"$node"}) / sum(hami_gpu_memory_limit_bytes{node=~"$node"})',
    'sum(hami_gpu_shared_count{node=~"$node"})',
    'hami_host_gpu_memory_used_bytes and on (device_uuid) hami_gpu_memory_limit_bytes{node=~"$node"}',
    'hami_host_gpu_utilization_ratio and on (device_uuid) hami_gpu_memory_limit_bytes{node=~"$node"}',
    'sum by (node) (hami_gpu_memory_allocated_bytes{node=~"$node"})',
    'sum by (node) (hami_gpu_memory_limit_bytes{node=~"$node"})',
    'hami_node_gpu_memory_allocated_ratio{node=~"$node"}',
    'hami_gpu_core_allocated_ratio{node=~"$node"}',
    'hami_gpu_shared_count{node=~"$node"}',
    'hami_vgpu_memory_used_bytes{namespace=~"$namespace"}',
    'hami_vgpu_memory_limit_bytes{namespace=~"$namespace"}',
    'hami_container_device_utilization_ratio{namespace=~"$namespace"}',
    '100 * hami_vgpu_memory_used_bytes{namespace=~"$namespace"}'
    ' / hami_vgpu_memory_limit_bytes{namespace=~"$namespace"}',
    'topk(10, hami_vgpu_memory_used_bytes{namespace=~"$namespace"})',
)
"""the queries of HAMi's dashboard"""
OLD_HAMI = (
    'nodeGPUOverview{nodeid=~"${node_name}",deviceuuid=~"${uuid}"}',
    'sum by (deviceuuid, nodename) (vGPUCorePercentage{nodename=~"${node_name}"})',
    'sum by (deviceuuid, nodename) (vGPUMemoryPercentage{nodename=~"${node_name}"})',
    'count by (node_name) (vGPU_device_memory_usage_in_bytes{node_name=~"${node_name}"})',
    'sum by (podname) (Device_memory_desc_of_container{node_name=~"${node_name}",deviceuuid=~"${uuid}"})',
    'sum by (podname) (Device_utilization_desc_of_container{node_name=~"${node_name}",deviceuuid=~"${uuid}"})',
    'HostGPUMemoryUsage{node_name=~"${node_name}",deviceuuid=~"${uuid}"}',
    'HostCoreUtilization{node_name=~"${node_name}",deviceuuid=~"${uuid}"}',
)
"""those of the dashboard of HAMi up to v2.8; its others ask NVIDIA's DCGM exporter"""
METRIC = re.compile(r"\b(?:tessera|hami)_\w+|\bup\b")
PATIENCE_S = 240.0
"""before something that never happens fails the test"""
STARTING = 503
"""what Prometheus answers while it reads its storage"""
SCRAPE_S = 3
"""between scrapes, and for one of them at most: a series whose scrape took longer is not there until the next"""

Json = dict[str, Any]


@pytest.fixture(scope="module")
def programs(tell: Tell) -> Mapping[str, Path]:
    """Prometheus and promtool, found or built."""
    told: list[str] = []
    try:
        found = build.ensure(["prometheus", "promtool"], tell=told.append)
    except build.Missing as missing:
        tell(str(missing))
        pytest.skip(f"no {', '.join(missing.names)} here, and no Go to build them")
    tell(f"{'prometheus':<24} {build.PROMETHEUS.version:<10} {found['prometheus']}")
    return found


# -- dashboards


def queries() -> dict[str, str]:
    """All queries, by where they are."""
    found = {f"HAMi: {query}": query for query in (*HAMI, *OLD_HAMI)}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets") or ():
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = target["expr"]
    return found


def rules() -> list[Json]:
    found: list[Json] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return found


def chosen(query: str) -> str:
    """The query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query
    return query


class DemoCards(HostUsage):
    """The driver of a demo's node, which has none."""

    def __init__(self, uuids: list[str]) -> None:
        self._uuids = uuids

    def read(self) -> tuple[CardUtilization, ...]:
        return tuple(CardUtilization(index, uuid, "NVIDIA L4", 5000, 70, 30) for index, uuid in enumerate(self._uuids))

    def close(self) -> None:
        pass


@asynccontextmanager
async def monitored(cluster: demo.DemoCluster, folder: Path, pod: Json) -> AsyncIterator[Address]:
    """A monitor of the pod's node, with the region that HAMi-core would write for it."""
    node, uid = pod["spec"]["nodeName"], uid_of(pod)
    [[entry]] = decode_pod_devices(annotations_of(pod)["hami.io/vgpu-devices-allocated"])
    path = folder / "vgpu" / "containers" / f"{uid}_main" / "x.cache"
    path.parent.mkdir(parents=True)
    used = Slot({0: (1, 2, 3, 1000, 40)})
    path.write_bytes(region(uuids=(entry.uuid,), limits=(5000,), slots=[used], last_kernel_time=int(time.time())))
    access = load_access(kubeconfig=str(cluster.plane.kubeconfig), environ={})
    settings = MonitorSettings(
        node_name=node, base=folder / "vgpu", metrics=Address("127.0.0.1", 0), legacy_metrics=True
    )
    async with KubeClient(access, user_agent="tessera-monitor") as client:
        cards = DemoCards(list(cluster.ledger.devices(node)))
        process = MonitorProcess(settings, client, host=cards)
        task = asyncio.create_task(process.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.listening.wait()
            assert process.address is not None
            yield process.address
        finally:
            process.stopping.set()
            await task


class Prometheus:
    """A running server."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def query(self, query: str) -> list[Json]:
        async with self._session.post("/api/v1/query", data={"query": query}) as response:
            if response.status == STARTING:
                return []
            answer = await response.json()
        assert answer["status"] == "success", f"{query}: {answer}"
        result: list[Json] = answer["data"]["result"]
        return result

    async def until_answered(self, queries: Mapping[str, str]) -> list[str]:
        """Waits until each query returns data, and returns those that never do."""
        left = list(queries)
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while left and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(SCRAPE_S / 5)
            try:
                left = [name for name in left if not await self.query(queries[name])]
            except aiohttp.ClientConnectionError:
                continue  # It has not started yet.
        return left


@asynccontextmanager
async def scraping(program: Path, folder: Path, targets: Mapping[str, Address]) -> AsyncIterator[Prometheus]:
    """Prometheus with these jobs."""
    [port] = free_ports(1)
    # The operator labels targets like this. HAMi's old dashboard needs node_name, which its page has people add.
    labels = {"namespace": "tessera-system", "pod": "tessera", "container": "tessera", "node_name": "n"}
    configuration = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": True,
                "static_configs": [{"targets": [str(address)], "labels": labels}],
            }
            for job, address in targets.items()
        ],
        "rule_files": [str(ALERTS)],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = [
        str(program),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = Program("prometheus", command, folder=folder, environ={"PATH": "/usr/bin:/bin", "HOME": str(folder)})
    server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield Prometheus(session)
    finally:
        words = server.words()
        server.stop()
        print(words)


@on_uvloop
async def test_every_query_of_every_dashboard_returns_data(
    programs: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "Settings", partial(Settings, legacy_metrics=True))
    folders = {name: tmp_path / name for name in ("demo", "monitor", "agent", "prometheus")}
    for folder in folders.values():
        folder.mkdir()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(demo.demo_cluster(folders["demo"]))
        for step in STORY:
            await step.act(cluster)
        pod = cluster.plane.pod("default", "chat-1")
        assert pod is not None
        node = await stack.enter_async_context(agent_node(folders["agent"]))
        await node.bound_pod("p", [[node.slice(0, memory=3000, cores=30)]])
        await node.allocate(1)
        await node.process.listening.wait()
        scheduler, agent = cluster.scheduler.listeners["metrics"].address, node.process.address
        assert scheduler is not None
        assert agent is not None
        targets = {
            "tessera-scheduler": scheduler,
            "tessera-device-plugin-monitor": agent,
            "tessera-monitor": await stack.enter_async_context(monitored(cluster, folders["monitor"], pod)),
        }
        prometheus = await stack.enter_async_context(scraping(programs["prometheus"], folders["prometheus"], targets))
        named = {name: name for rule in rules() for name in METRIC.findall(rule["expr"])}
        kept = 'hami_vgpu_memory_used_bytes{namespace="default",pod="chat-1",container="main"}'
        asked = {where: chosen(query) for where, query in queries().items()} | named | {kept: kept}
        assert len(asked) > len(HAMI) + len(OLD_HAMI) + 2 * len(DASHBOARDS)
        assert not await prometheus.until_answered(asked)
        firing = await prometheus.query('ALERTS{alertstate="firing"}')
        assert not firing


# -- alerts

MINUTES = 60
"""of every case"""
LEADER = 'tessera_leader{instance="a"}'
CALM = {LEADER: "1"}
"""without which TesseraNoLeader fires"""
FREE_CARD = 'hami_gpu_shared_count{device_uuid="x"}'
EXPIRY = "tessera_certificate_expiry_timestamp_seconds"
SOON, LATER = f"{13 * 86_400}", f"{15 * 86_400}"
"""seconds since the beginning, which is the epoch here"""
REFUSED = 'tessera_agent_allocations_total{instance="n",result="refused"}'


CASES: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({LEADER: "1"}, ()),
    ({}, ("TesseraNoLeader",)),
    ({LEADER: "0", 'tessera_leader{instance="b"}': "0"}, ("TesseraNoLeader",)),
    ({LEADER: "0", 'tessera_leader{instance="b"}': "1"}, ()),
    (CALM | {'tessera_devices_overallocated{instance="a"}': "0", "tessera_ledger_drift": "0"}, ()),
    (CALM | {'tessera_devices_overallocated{instance="a"}': "2"}, ("TesseraCardOverallocated",)),
    (CALM | {"tessera_ledger_drift": "1"}, ("TesseraLedgerDrift",)),
    (CALM | {'tessera_agent_slice_mismatches_total{instance="n"}': "0+0x55 1+0x10"}, ("TesseraSliceMismatch",)),
    (CALM | {'tessera_agent_slice_mismatches_total{instance="n"}': "3"}, ()),
    (CALM | {'tessera_watch_age_seconds{instance="a",resource="pods"}': "120"}, ()),
    (CALM | {'tessera_watch_age_seconds{instance="a",resource="pods"}': "181"}, ("TesseraWatchStalled",)),
    (CALM | {'tessera_agent_watch_age_seconds{instance="n",resource="node"}': "181"}, ("TesseraWatchStalled",)),
    (CALM | {'up{job="tessera-device-plugin-monitor",instance="n"}': "0"}, ("TesseraAgentGone",)),
    (CALM | {'up{job="another",instance="n"}': "0"}, ()),
    (CALM | {'tessera_agent_ready{instance="n"}': "0"}, ("TesseraAgentNotReady",)),
    (CALM | {'tessera_agent_ready{instance="n"}': "1"}, ()),
    (CALM | {EXPIRY: SOON}, ("TesseraCertificateExpires",)),
    (CALM | {EXPIRY: LATER}, ()),
    (CALM | {EXPIRY: "0"}, ()),
    (CALM | {"tessera_pods_refused": "2", FREE_CARD: "0"}, ("TesseraPodsWaitBesideFreeCards",)),
    (CALM | {"tessera_pods_refused": "2", FREE_CARD: "1"}, ()),
    (CALM | {"tessera_pods_refused": "0", FREE_CARD: "0"}, ()),
    (
        CALM | {'tessera_bind_seconds_bucket{le="20"}': "0+6x60", 'tessera_bind_seconds_bucket{le="+Inf"}': "0+6x60"},
        ("TesseraSlowBinds",),
    ),
    (
        CALM | {'tessera_bind_seconds_bucket{le="1"}': "0+6x60", 'tessera_bind_seconds_bucket{le="+Inf"}': "0+6x60"},
        (),
    ),
    (CALM | {"tessera_pods_awaiting_turn": "1"}, ("TesseraHandoverStuck",)),
    (CALM | {"tessera_pods_awaiting_turn": "1+0x55 0+0x10"}, ()),
    (CALM | {'tessera_agent_card_healthy{instance="n",uuid="x"}': "0"}, ("TesseraCardUnhealthy",)),
    (CALM | {REFUSED: "0+1x60"}, ("TesseraAllocateRefused",)),
    (CALM | {REFUSED: "9"}, ()),
]
"""series, by name and values, and the alerts that fire in the end"""


def test_alerts_fire_when_they_should(programs: Mapping[str, Path], tmp_path: Path) -> None:
    query = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests = []
    for series, firing in CASES:
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing]
        case = {
            "name": f"{series}",
            "interval": "1m",
            "input_series": [
                {"series": name, "values": f"{text}+0x{MINUTES}" if text.isdigit() else text}
                for name, text in series.items()
            ],
            "promql_expr_test": [{"expr": query, "eval_time": f"{MINUTES}m", "exp_samples": expected}],
        }
        tests.append(case)
    told = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(told))
    command = [str(programs["promtool"]), "test", "rules", str(tmp_path / "test.yaml")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    assert {name for _, firing in CASES for name in firing} == {rule["alert"] for rule in rules()}


def test_the_chart_renders_dashboards_and_alerts(helm: Path, programs: Mapping[str, Path], tmp_path: Path) -> None:
    settings = "dashboards.enabled=true,alerts.enabled=true,prometheus.enabled=true"
    rendered = chart.run(
        helm, "template", "x", str(chart.CHART), f"--set={settings}", "--api-versions=monitoring.coreos.com/v1"
    )
    objects = [each for each in yaml.safe_load_all(rendered) if each]
    boards = [each for each in objects if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    assert [json.loads(text) for each in boards for text in each["data"].values()] == [
        json.loads(path.read_text()) for path in DASHBOARDS
    ]
    monitors = [each for each in objects if each["kind"] == "ServiceMonitor"]
    assert [endpoint["honorLabels"] for each in monitors for endpoint in each["spec"]["endpoints"]] == [True] * 3
    [rule] = [each for each in objects if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(ALERTS.read_text())
    done = subprocess.run(
        [programs["promtool"], "check", "rules", ALERTS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
