"""A journey on the page of the real server: `tessera dashboard` beside the scheduler, on the embedded control plane."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tessera_lab.sandbox.nodes.node import SimulatedNode, gpu_cards
from tests.support.product import gpu_pod, product
from tests.ui.conftest import Readers

MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: trial}
spec:
  containers:
    - name: main
      image: some-image
      resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: %d}}
"""
START_S = 60.0


@asynccontextmanager
async def dashboard(*arguments: str) -> AsyncIterator[str]:
    """`tessera dashboard` as a process; its address, with the token."""
    command = (sys.executable, "-m", "tessera", "dashboard", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("The page is at http://127.0.0.1:")
        yield line.split()[-1]
    finally:
        process.terminate()
        await process.communicate()


async def test_a_journey_through_the_page_of_a_live_cluster(readers: Readers, tmp_path: Path) -> None:
    nodes = [SimulatedNode("n1", gpu_cards("n1", 2)), SimulatedNode("n2", gpu_cards("n2", 1))]
    async with product(nodes, tmp_path) as cluster, dashboard("--kubeconfig", str(cluster.plane.kubeconfig)) as address:
        url, _, token = address.partition("#")
        viewer = await readers.arrive(url)
        await viewer.open(token)
        await viewer.until_text(".found", "3 cards")
        await viewer.until_text("#phase", "Live")

        await cluster.post_pod(gpu_pod("first", gpu=1, mem=1000))
        await viewer.until_text(".legend-name", "default")
        await cluster.post_pod(gpu_pod("large", gpu=1, mem=900_000))
        await viewer.until_text("#tabs .badge", "1")
        await viewer.press("2")
        await viewer.until_text(".waiting-pod h3", "default/large")
        await viewer.until_text(".waiting-pod dt", "Why")
        await viewer.until_text(".waiting-pod", "900000 MiB")

        await viewer.press("3")
        await viewer.page.get_by_label("Manifest").fill(MANIFEST % 1000)
        await viewer.page.get_by_role("button", name="Try it").click()
        await viewer.until_text(".verdict.fits", "trial fits")
        await viewer.page.get_by_label("Manifest").fill(MANIFEST % 900_000)
        await viewer.page.get_by_role("button", name="Try it").click()
        await viewer.until_text(".verdict.misfits", "trial does not fit")
        await viewer.page.wait_for_selector(".shapes-table tbody tr")

        await viewer.press("Escape", "5")
        await viewer.until_text(".totals-table", "default")

        await viewer.go("pod=default/first")
        await viewer.until_text("#details .lines", "placed on")
        await viewer.page.locator("#details .slices a").first.click()
        await viewer.until_text("#details .slices", "default/first")

        await cluster.plane.delete_pod("default", "first")
        await viewer.until_text("#details h3", "No slices: the card is free")
