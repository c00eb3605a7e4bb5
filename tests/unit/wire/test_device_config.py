from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct, field

from tessera.wire.config_file import ConfigError
from tessera.wire.device_config import (
    ALL_EMPTY,
    SectionSchema,
    dump_device_config,
    empty_section,
    load_device_config,
    resource_name_problem,
)


class Base(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Allowance(Base, frozen=True, kw_only=True):
    models: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()


class Green(Base, frozen=True, kw_only=True):
    resource_count_name: str = ""
    default_memory: int = 0
    default_gpu_num: int = field(default=0, name="defaultGPUNum")
    device_memory_scaling: float | None = None
    lib_cuda_log_level: str | int | None = None
    overwrite_env: bool = False
    mig_profile_allowlist: tuple[Allowance, ...] = ()
    known_mig_geometries: tuple[Any, ...] = ()


class Chip(Base, frozen=True, kw_only=True):
    chip_name: str = ""
    resource_name: str = ""


class Chips(Base, frozen=True, kw_only=True):
    soft: bool = False
    configs: tuple[Chip, ...] = ()


SCHEMAS: dict[str, Any] = {
    "nvidia": Green,
    "vnpus": SectionSchema(Chips, list_key="configs"),
    "iluvatars": SectionSchema(tuple[Chip, ...]),
    "metax": list[Chip],
}


def load(text: str) -> dict[str, Any]:
    return load_device_config(text, file="device-config.yaml", schemas=SCHEMAS)


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return [str(problem) for problem in caught.value.problems]


def test_sections_are_decoded_into_the_types_of_their_vendors() -> None:
    text = """
version: v1
flags: {migStrategy: none}
sharing: {timeSlicing: {anything: [goes]}}
resources: []
imex: null
nvidia:
  resourceCountName: nvidia.com/gpu
  defaultGPUNum: 1
  deviceMemoryScaling: 1
  libCudaLogLevel: 1
  migProfileAllowlist:
  - models: [A30]
    profiles: [1g.6gb]
  knownMigGeometries:
  - models: [A30]
    allowedGeometries: [[{name: 1g.6gb, memory: 6144, count: 4}]]
metax: []
"""
    assert load(text) == {
        "nvidia": Green(
            resource_count_name="nvidia.com/gpu",
            default_gpu_num=1,
            device_memory_scaling=1.0,
            lib_cuda_log_level=1,
            mig_profile_allowlist=(Allowance(models=("A30",), profiles=("1g.6gb",)),),
            known_mig_geometries=(
                {"models": ["A30"], "allowedGeometries": [[{"name": "1g.6gb", "memory": 6144, "count": 4}]]},
            ),
        ),
        "metax": [],
    }


@pytest.mark.parametrize(
    "text",
    [
        "vnpus: [{chipName: 910A}]",
        "vnpus: {configs: [{chipName: 910A}]}",
        "vnpus: {soft: false, configs: [{chipName: 910A}]}",
    ],
)
def test_the_list_form_and_the_table_form_of_a_section_mean_the_same(text: str) -> None:
    assert load(text) == {"vnpus": Chips(configs=(Chip(chip_name="910A"),))}


def test_mistakes_in_an_old_form_have_the_line_of_the_section() -> None:
    assert problems("\nvnpus:\n- chipName: a\n- chipName: 5\n") == [
        "device-config.yaml:2: vnpus.configs[1].chipName: expected a text, found 5"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n# nothing\n",
        "{}",
        "flags: {}",
        "nvidia:",
        "nvidia: {}",
        'nvidia: {resourceCountName: ""}',
        "vnpus: []\nmetax: []\niluvatars:\nnvidia: {defaultMemory: 0}",
    ],
)
def test_a_file_that_configures_nothing_is_refused(text: str) -> None:
    assert problems(text) == [f"device-config.yaml: {ALL_EMPTY}"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvidai: {}", 'device-config.yaml:1: unknown section "nvidai"; did you mean "nvidia"?'),
        ("flag: {}", 'device-config.yaml:1: unknown section "flag"; did you mean "flags"?'),
        ("- nvidia", "device-config.yaml:1: expected a table of sections, found a list"),
        ("nvidia: 5", "device-config.yaml:1: nvidia: expected a table of keys, found 5"),
        ("metax: {}", "device-config.yaml:1: metax: expected a list, found a table of keys"),
        (
            "nvidia:\n  resourceCountName: gpu",
            "device-config.yaml:2: nvidia.resourceCountName: expected a resource name such as nvidia.com/gpu, "
            'found "gpu", which has no domain in front',
        ),
        (
            "nvidia:\n  migProfileAllowlist:\n  - models: [a]\n  - {}\n  - models: x\n",
            'device-config.yaml:5: nvidia.migProfileAllowlist[2].models: expected a list, found the text "x"',
        ),
    ],
)
def test_a_mistake_is_told_with_file_line_and_path(text: str, said: str) -> None:
    assert said in problems(text)


def test_a_file_full_of_unknown_sections_is_told_in_short() -> None:
    assert str(_refusal("\n".join(f"key{i}: {{}}" for i in range(1000)))).endswith("and 950 more problems")


def _refusal(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nvidia.com/gpu",
        "nvidia.com/gpumem-percentage",
        "cambricon.com/mlu.smlu.vmemory",
        "iluvatar.ai/MR-V100.vCore",
        "huawei.com/Ascend910B4-1_x",
        "a/b",
        "a" * 63 + ".com/" + "b" * 63,
    ],
)
def test_a_name_that_kubernetes_takes_for_an_extended_resource_is_good(name: str) -> None:
    assert resource_name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "gpu",
        "/gpu",
        "nvidia.com/",
        "nvidia.com/a/b",
        "nvidia.com/-gpu",
        "nvidia.com/gpu.",
        "nvidia.com/g pu",
        "nvidia.com/gpü",
        "nvidia.com/gpu\n",
        "Nvidia.com/gpu",
        "nvidia..com/gpu",
        "kubernetes.io/gpu",
        "node.kubernetes.io/gpu",
        "nvidia.com/" + "b" * 64,
        "a" * 250 + "/gpu",
    ],
)
def test_a_name_that_kubernetes_refuses_is_refused_here(name: str) -> None:
    assert "expected a resource name such as nvidia.com/gpu" in str(resource_name_problem(name))


def test_what_is_dumped_is_read_back() -> None:
    sections = {
        "nvidia": Green(
            resource_count_name="nvidia.com/gpu",
            lib_cuda_log_level="1",
            device_memory_scaling=1.5,
            mig_profile_allowlist=(Allowance(models=("true", "1e5", "012", "a: b", " x"), profiles=("~", "")),),
            known_mig_geometries=({"a": [1, "1", None]},),
        ),
        "metax": [Chip(chip_name="no"), Chip(chip_name="no")],
    }
    assert load(dump_device_config(sections)) == sections


def test_what_is_not_configured_is_not_dumped() -> None:
    assert dump_device_config({"nvidia": Allowance(models=("yes",))}) == (
        'nvidia:\n  models:\n  - "yes"\n  profiles: []\n'
    )


def test_the_empty_value_of_a_section_follows_its_type() -> None:
    assert [empty_section(schema) for schema in SCHEMAS.values()] == [Green(), Chips(), (), []]
