from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from tessera.kube.access import Access
from tessera.kube.client import KubeClient
from tessera.scheduler.certificates.authority import LEAF_S, Material, facts_of, service_names
from tessera.scheduler.certificates.tls import CHECK_S, LOOK_S, ServingTls, TlsError
from tessera.scheduler.settings import SelfManaged, TlsFiles
from tests.support.certificates import NOW, fresh
from tests.support.event_loops import in_fake_time
from tests.support.logs import captured
from tests.support.scheduler_process import write_pair

NO_CLIENT = cast("KubeClient", None)
OWN = SelfManaged("ns", "secret", "service", "webhook")


def serving(source: TlsFiles | SelfManaged | None, client: Any = NO_CLIENT, *, client_ca: str = "") -> ServingTls:
    return ServingTls(source, client, client_ca=client_ca, now=lambda: NOW)


@in_fake_time
async def test_without_a_certificate_there_is_no_tls_and_nothing_to_look_at() -> None:
    none = serving(None)
    none.prepare()
    assert (none.context, none.expiry) == (None, 0.0)
    task = asyncio.create_task(none.run())
    none.look()
    with captured() as logs:
        await asyncio.sleep(10 * LOOK_S)
    assert not task.done()
    assert logs.events == []
    task.cancel()


async def test_the_files_are_read_before_anything_listens(tmp_path: Path) -> None:
    files = write_pair(tmp_path, trustme.CA())
    made = serving(files)
    assert made.expiry == 0.0
    for _ in range(2):
        made.prepare()
        assert made.expiry == facts_of(Path(files.certificate).read_bytes()).not_after


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
async def test_nothing_starts_with_files_that_cannot_be_read(tmp_path: Path, missing: str) -> None:
    files = write_pair(tmp_path, trustme.CA())
    (tmp_path / missing).unlink()
    with pytest.raises(TlsError, match=f"cannot read .*/{missing}: No such file or directory"):
        serving(files).prepare()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read .*ca.crt: No such file"),
        (b"", "ca.crt: .*no certificate"),
        (b"x", "ca.crt: .*no certificate"),
    ],
)
async def test_an_authority_of_clients_that_cannot_be_read_is_no_authority(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    files = write_pair(tmp_path, trustme.CA())
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    with pytest.raises(TlsError, match=said):
        serving(files, client_ca=str(tmp_path / "ca.crt"))


@in_fake_time
async def test_files_are_looked_at_every_few_seconds_and_at_once_when_told(tmp_path: Path) -> None:
    authority = trustme.CA()
    made = serving(write_pair(tmp_path, authority))
    made.prepare()
    task = asyncio.create_task(made.run())
    with captured() as logs:
        await asyncio.sleep(LOOK_S / 2)
        write_pair(tmp_path, authority)
        await asyncio.sleep(LOOK_S)
        assert len(logs.of("certificate read again")) == 1
        write_pair(tmp_path, authority)
        made.look()
        await asyncio.sleep(0.01)
        assert len(logs.of("certificate read again")) == 2
    task.cancel()


@in_fake_time
async def test_bad_files_are_reported_once_and_again_after_good_ones(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write_pair(tmp_path, authority)
    made = serving(files)
    made.prepare()
    good, before = Path(files.certificate).read_bytes(), made.expiry
    task = asyncio.create_task(made.run())
    with captured() as logs:
        for text, complaints in ((b"nonsense", 1), (good, 1), (b"nonsense", 2)):
            Path(files.certificate).write_bytes(text)
            await asyncio.sleep(3 * LOOK_S)
            assert len(logs.of("certificate not read again, the old one stays")) == complaints
            assert made.expiry == before
    task.cancel()


class Cluster:
    """Has a good Secret and no webhook configuration; notes when it is read."""

    def __init__(self, secret: Material) -> None:
        self._secret = {"data": {name: b64encode(value).decode() for name, value in secret.data.items()}}
        self.reads: list[float] = []

    async def find(self, path: str, _kind: type[Any]) -> Any:
        if "webhook" in path:
            return None
        self.reads.append(asyncio.get_running_loop().time())
        return self._secret


@in_fake_time
async def test_own_certificates_are_checked_every_minute_and_sooner_when_told() -> None:
    names = service_names(OWN.service, OWN.namespace)
    cluster = Cluster(fresh(names=names))
    made = serving(OWN, cluster)
    made.prepare()
    assert made.context is not None
    task = asyncio.create_task(made.run())
    await asyncio.sleep(90)
    made.look()
    await asyncio.sleep(1)
    assert cluster.reads == [0, CHECK_S, 90]
    assert made.expiry == NOW + LEAF_S
    task.cancel()


async def test_a_certificate_of_our_own_is_missing_until_it_is_served() -> None:
    where = SelfManaged(namespace="kube-system", secret="s", service="svc", webhook_configuration="w")
    async with KubeClient(Access("http://127.0.0.1:9")) as client:
        own = ServingTls(where, client, client_ca="", now=lambda: 0.0)
        assert own.missing() == "there is no serving certificate yet"
        assert ServingTls(None, client, client_ca="", now=lambda: 0.0).missing() == ""
