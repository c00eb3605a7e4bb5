"""Sisters are prepared once, and whatever is read of a pod makes it another one."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.model.arrays import CardArrays
from tessera.core.model.requests import PodRequest
from tessera.scheduler.requests import reader as request_reader
from tessera.scheduler.requests.demand_tracker import DemandTracker
from tessera.scheduler.requests.reader import PreparedRequest, RequestReader
from tessera.vendors.downward_api import container_env
from tessera.vendors.nvidia.downward_api import DISABLE_CONTROL, NvidiaDownwardApi
from tessera.vendors.pod_reader import PolicyDefaults
from tessera.wire import keys
from tessera.wire.objects import Container, EnvVar, Metadata, Pod, PodSpec, ResourceRequirements
from tests.support import strategies as some
from tests.support.builders import gpu_pod

REFERENCES = [
    msgspec.convert(entry, EnvVar)
    for position in (0, 1)
    for entry in container_env(NvidiaDownwardApi(), container=position, name="c", devices=2)
]
VARIABLES = [*REFERENCES, *(EnvVar(DISABLE_CONTROL, text) for text in ("true", "false", "")), EnvVar("A", "b")]
environments = st.one_of(
    st.sampled_from([REFERENCES[: len(REFERENCES) // 2], REFERENCES[len(REFERENCES) // 2 :]]),
    st.lists(st.sampled_from(VARIABLES), max_size=4),
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    pod = draw(some.wire_pods(("NVIDIA", "DCU"), draw(st.sampled_from(["u1", "u2"]))))

    def dressed(containers: list[Container] | None) -> list[Container]:
        return [msgspec.structs.replace(one, env=draw(environments)) for one in containers or ()]

    spec = pod.spec
    return msgspec.structs.replace(
        pod,
        spec=msgspec.structs.replace(
            spec, containers=dressed(spec.containers), init_containers=dressed(spec.init_containers)
        ),
    )


def plainly(request: PodRequest) -> PodRequest:
    """The same, with nothing worked out before."""
    return PodRequest(**{name: getattr(request, name) for name in PodRequest.__dataclass_fields__})


def reader() -> RequestReader:
    return RequestReader(some.VENDORS, PolicyDefaults(), DemandTracker(CardArrays(), some.VENDORS))


@given(st.lists(pods(), min_size=1, max_size=6))
def test_a_pod_is_prepared_as_if_it_were_the_first(asked: list[Pod]) -> None:
    with mock.patch.object(request_reader, "REMEMBERED", 3):
        one = reader()
        for pod in [*asked, *asked]:
            prepared, alone = one.read(pod), reader().read(pod)
            assert prepared == alone
            if isinstance(prepared, PreparedRequest):
                again = plainly(prepared.request)
                assert again == prepared.request
                assert (again.shape, again.vendors) == (prepared.request.shape, prepared.request.vendors)
                assert hash(again.shape) == hash(prepared.request.shape)
                assert prepared.request.uid == pod.metadata.uid


def gpu_container(
    name: str = "c", *, restart: str | None = None, env: list[EnvVar] | None = None, gpus: int = 1
) -> Container:
    return Container(name, ResourceRequirements({"nvidia.com/gpu": gpus}), env, restart)


def pod_of(*containers: Container, init: Container | None = None, policy: str | None = None) -> Pod:
    annotations = {keys.NODE_POLICY: policy} if policy else None
    spec = PodSpec(containers=list(containers), init_containers=[init] if init else None)
    return Pod(metadata=Metadata(name="p", uid="u", annotations=annotations), spec=spec)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pod_of(gpu_container()), pod_of(gpu_container("d"))),
        (pod_of(gpu_container()), pod_of(gpu_container(gpus=2))),
        (pod_of(gpu_container()), pod_of(gpu_container(), policy="spread")),
        (
            pod_of(gpu_container(), init=gpu_container("i")),
            pod_of(gpu_container(), init=gpu_container("i", restart="Always")),
        ),
        (pod_of(gpu_container(), init=gpu_container("i")), pod_of(gpu_container(), gpu_container("i"))),
        (pod_of(gpu_container()), pod_of(gpu_container(env=REFERENCES[: len(REFERENCES) // 2]))),
        (
            pod_of(gpu_container(env=[*REFERENCES[: len(REFERENCES) // 2], EnvVar(DISABLE_CONTROL, "true")])),
            pod_of(gpu_container(env=[*REFERENCES[: len(REFERENCES) // 2], EnvVar(DISABLE_CONTROL, "false")])),
        ),
    ],
)
def test_pods_that_differ_in_one_thing_are_not_taken_for_siblings(one: Pod, other: Pod) -> None:
    siblings = reader()
    assert siblings.read(one) == siblings.read(one)
    assert siblings.read(one) != siblings.read(other)


def test_a_large_pod_is_read_every_time() -> None:
    """A thousand pods of a megabyte each would fill the memory."""
    reading = reader()
    small = gpu_pod().api()
    for large in (
        gpu_pod().annotate(("a", "x" * 20_000)).api(),
        msgspec.structs.replace(small, spec=PodSpec(containers=[Container(name="c", env=[EnvVar("A", "b")] * 600)])),
        msgspec.structs.replace(small, spec=PodSpec(containers=[Container(name=f"c{i}") for i in range(40)])),
    ):
        assert isinstance(reading.read(large), PreparedRequest)
        assert not reading._known
    reading.read(small)
    assert len(reading._known) == 1
