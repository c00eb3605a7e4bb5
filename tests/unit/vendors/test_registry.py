from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tessera.vendors import registry
from tessera.vendors.base import Family, ResourceNames, Section, Switches, Vendor
from tessera.vendors.nvidia.backend import NvidiaSection

OURS = {"nvidia", "cambricon", "hygon", "iluvatars", "iluvatar", "mthreads"}
ALL = Switches(ascend=True, iluvatar=True)


def family(section: str) -> Family:
    return Family(title=section, section=section, chart=Section(), build=lambda section, switches: [])


class Stub(Vendor):
    def __init__(self, key: str, *names: str) -> None:
        self.key = key
        self.names = ResourceNames(others=names)


def test_every_module_with_a_family_is_found() -> None:
    sections = [family.section for family in registry.families()]
    assert sections == sorted(sections)
    assert set(sections) >= OURS


def test_a_module_offers_one_family_or_several_or_none() -> None:
    acme, bolt, core = family("acme"), family("bolt"), family("core")
    modules = (SimpleNamespace(CORE=core, BOLT=bolt), SimpleNamespace(), SimpleNamespace(FAMILY=acme))
    assert registry.collect(modules) == (acme, bolt, core)


def test_a_family_that_a_module_only_imports_counts_once() -> None:
    acme = family("acme")
    assert registry.collect((SimpleNamespace(FAMILY=acme), SimpleNamespace(FAMILY=acme))) == (acme,)


def test_two_modules_cannot_claim_one_section() -> None:
    with pytest.raises(ValueError, match="two vendor modules claim the section acme"):
        registry.collect((SimpleNamespace(FAMILY=family("acme")), SimpleNamespace(FAMILY=family("acme"))))


def test_schemas_are_those_of_the_families() -> None:
    schemas = registry.schemas()
    assert schemas["nvidia"].type is NvidiaSection
    assert set(schemas) == {family.section for family in registry.families()}


def test_the_values_of_the_chart_stand_in_for_a_file() -> None:
    built = registry.build_vendors(None, Switches())
    assert list(built) == sorted(built)
    assert {"NVIDIA", "MLU", "DCU", "Mthreads"} <= set(built)
    assert "BI-V100" not in built
    assert built["NVIDIA"].names.count == "nvidia.com/gpu"


def test_switches_bring_in_more_vendors() -> None:
    built = registry.build_vendors(None, ALL)
    assert {"MR-V100", "MR-V50", "BI-V150", "BI-V100"} <= set(built)


def test_the_values_of_the_chart_pass_their_own_schemas() -> None:
    for family in registry.families():
        plain = msgspec.to_builtins(family.chart)
        assert msgspec.convert(plain, family.schema) == family.chart


@pytest.mark.parametrize("sections", [{}, {"nvidia": None, "iluvatars": None}])
def test_vendors_without_a_section_exist_without_names(sections: dict[str, Any]) -> None:
    built = registry.build_vendors(sections, ALL)
    assert {"NVIDIA", "MLU", "DCU", "Mthreads"} <= set(built)
    assert "BI-V100" not in built
    assert built["NVIDIA"].names.all == ()


def test_sections_may_be_decoded_or_plain() -> None:
    decoded = NvidiaSection(resource_count_name="example.com/gpu")
    plain = {"resourceCountName": "example.com/gpu"}
    for section in (decoded, plain):
        built = registry.build_vendors({"nvidia": section, "unknown": 1}, Switches())
        assert built["NVIDIA"].names.count == "example.com/gpu"


def test_an_old_iluvatar_section_is_a_vendor_beside_the_chips() -> None:
    sections = {
        "iluvatar": {"resourceCountName": "iluvatar.ai/vgpu"},
        "iluvatars": [{"chipName": "BI-V100", "resourceCountName": "iluvatar.ai/BI-V100-vgpu"}],
    }
    built = registry.build_vendors(sections, ALL)
    assert {"Iluvatar", "BI-V100"} <= set(built)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"nvidia": {"memoryFactor": "one"}}, "nvidia: Expected `int`, got `str` - at `$.memoryFactor`"),
        ({"nvidia": [1]}, "nvidia: Expected `object`, got `array`"),
        ({"nvidia": {"migProfileAllowlist": [{}]}}, "nvidia: invalid MIG profile allowlist: "),
        ({"iluvatars": [{}]}, "iluvatars: every entry needs"),
    ],
)
def test_a_section_that_cannot_be_used_is_named(sections: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        registry.build_vendors(sections, ALL)


def test_two_vendors_cannot_have_one_key() -> None:
    chips = [{"chipName": "X"}, {"chipName": "Y", "commonWord": "X"}]
    with pytest.raises(ValueError, match="two vendors have the key X"):
        registry.build_vendors({"iluvatars": chips}, ALL)


def test_two_vendors_cannot_claim_one_resource() -> None:
    sections = {
        "nvidia": {"resourceCountName": "example.com/gpu"},
        "hygon": {"resourceMemoryName": "example.com/gpu"},
    }
    with pytest.raises(ValueError, match="the vendors DCU and NVIDIA both claim the resource example"):
        registry.build_vendors(sections, Switches())


def test_one_vendor_may_use_a_name_twice() -> None:
    assert list(registry.unique([Stub("b", "x", "x"), Stub("a", "y")])) == ["a", "b"]


def test_a_vendor_whose_section_is_absent_claims_no_resource() -> None:
    sections = {"nvidia": {"resourceCountName": "nvidia.com/gpu", "resourceMemoryName": "nvidia.com/gpumem"}}
    built = registry.build_vendors(sections, Switches(ascend=True, iluvatar=True))
    assert {name for vendor in built.values() for name in vendor.names.all} == {"nvidia.com/gpu", "nvidia.com/gpumem"}
