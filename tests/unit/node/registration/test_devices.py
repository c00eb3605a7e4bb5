from __future__ import annotations

import json
from typing import Any

import pytest

from tessera.core.model.devices import MigPlacement
from tessera.host.cards import MIB, CardFacts, GpuInstanceProfile, Links, TopologyLevel
from tessera.node.fleet import CardState, Fleet
from tessera.node.registration.devices import PairScores, pair_scores, registrable, registration_text
from tessera.node.settings import AgentSettings
from tessera.vendors.nvidia.backend import CHART_ALLOWLIST, MigAllowance
from tessera.wire.node_config import NodeSettings
from tessera.wire.registration import decode_pair_scores, decode_registration, encode_pair_scores

UUID = "GPU-03f69c50-207a-2038-9b45-23cac89cb67a"
A100_BYTES = 85899345920

NODE = TopologyLevel.NODE


def facts(**changes: Any) -> CardFacts:
    known: dict[str, Any] = {"uuid": UUID, "index": 0, "name": "NVIDIA A100-SXM4-80GB", "memory_bytes": A100_BYTES}
    return CardFacts(**known | changes)


def allow(models: tuple[str, ...], profiles: tuple[str, ...]) -> MigAllowance:
    return MigAllowance(models=models, profiles=profiles)


def settings(*, allowances: tuple[MigAllowance, ...] = (), text: bool = False, **node: Any) -> AgentSettings:
    return AgentSettings(node_name="n1", node=NodeSettings(**node), mig_allowances=allowances, text_registration=text)


def registered(card: CardFacts, chosen: AgentSettings, *, problem: str = "") -> dict[str, Any]:
    """The one device, as it is on the wire."""
    found = registrable(Fleet((CardState(card, problem),)), chosen)
    assert found.left_out == {}
    (device,) = json.loads(registration_text(found.devices, chosen))
    return dict(device)


def why_left_out(card: CardFacts, chosen: AgentSettings) -> str:
    found = registrable(Fleet((CardState(card),)), chosen)
    assert found.devices == ()
    assert list(found.left_out) == [card.uuid]
    return found.left_out[card.uuid]


def test_a_plain_card_is_registered_as_schedulers_know_it() -> None:
    fleet = Fleet((CardState(facts()), CardState(facts(uuid="GPU-b", index=1, numa=1), problem="XID 79")))
    chosen = settings()
    assert registration_text(registrable(fleet, chosen).devices, chosen) == (
        '[{"id":"GPU-03f69c50-207a-2038-9b45-23cac89cb67a","count":10,"devmem":81920,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-80GB","mode":"hami-core","health":true},'
        '{"id":"GPU-b","index":1,"count":10,"devmem":81920,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-80GB","numa":1,"mode":"hami-core"}]'
    )


@pytest.mark.parametrize(
    ("mib", "scaling", "devmem"),
    [(81920, 1.0, 81920), (81559, 1.1, 89714), (143771, 0.5, 71885), (81920, 1, 81920), (16384, 2.5, 40960)],
)
def test_memory_is_scaled_and_its_fraction_cut_off(mib: int, scaling: float, devmem: int) -> None:
    card = facts(memory_bytes=mib * MIB + 12345)
    assert registered(card, settings(memory_scaling=scaling))["devmem"] == devmem


@pytest.mark.parametrize(
    ("scaling", "devcore"),
    # Upstream cuts off what binary fractions lose: 114, 28.
    [(1.0, 100), (1.15, 115), (0.29, 29), (2.0, 200), (0.125, 13), (0.994, 99)],
)
def test_cores_are_scaled_and_rounded(scaling: float, devcore: int) -> None:
    assert registered(facts(), settings(core_scaling=scaling))["devcore"] == devcore


def test_a_card_with_no_cores_to_give_is_registered_so() -> None:
    assert "devcore" not in registered(facts(), settings(core_scaling=0.001))


@pytest.mark.parametrize(
    ("name", "type_", "old"),
    [
        ("Tesla V100-PCIE-32GB", "NVIDIA-Tesla V100-PCIE-32GB", "NVIDIA-Tesla V100-PCIE-32GB"),
        ("NVIDIA H200", "NVIDIA H200", "NVIDIA-NVIDIA H200"),
    ],
)
def test_the_type_begins_with_the_maker(name: str, type_: str, old: str) -> None:
    assert registered(facts(name=name), settings())["type"] == type_
    chosen = settings(text=True)
    devices = registrable(Fleet((CardState(facts(name=name)),)), chosen).devices
    assert registration_text(devices, chosen) == f"{UUID},10,81920,100,{old},0,true,0,hami-core:"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"mode": "mps", "split_count": 4, "memory_scaling": 1.5}, {"count": 4, "devmem": 122880, "mode": "mps"}),
        ({"mode": "none", "split_count": 4, "memory_scaling": 1.5}, {"count": 1, "devmem": 81920, "mode": "none"}),
    ],
)
def test_the_mode_decides_how_many_share_a_card(node: dict[str, Any], expected: dict[str, Any]) -> None:
    found = registered(facts(), settings(**node))
    assert {key: found[key] for key in expected} == expected
    assert found["devcore"] == 100


@pytest.mark.parametrize(("numa", "written"), [(None, None), (0, None), (-1, None), (1, 1)])
def test_an_unknown_numa_node_is_written_as_the_first(numa: int | None, written: int | None) -> None:
    assert registered(facts(numa=numa), settings()).get("numa") == written


def test_a_card_that_does_not_report_its_memory_gets_the_configured_one() -> None:
    silent = facts(memory_bytes=None)
    assert registered(silent, settings(preconfigured_memory=16000))["devmem"] == 16000
    assert registered(silent, settings(preconfigured_memory=16000, memory_scaling=1.5))["devmem"] == 24000
    assert "does not report its memory" in why_left_out(silent, settings())


@pytest.mark.parametrize(
    ("card", "node", "reason"),
    [
        pytest.param({}, {"split_count": 0}, "split count 0", id="no-shares"),
        pytest.param({}, {"split_count": -3}, "split count -3", id="negative-shares"),
        pytest.param({}, {"split_count": 2**31}, "cannot be registered", id="too-many-shares"),
        pytest.param({}, {"memory_scaling": 0.0}, "no memory", id="no-memory"),
        pytest.param({}, {"memory_scaling": 1e9}, "cannot be registered", id="too-much-memory"),
        pytest.param({}, {"memory_scaling": float("inf")}, "not a number", id="endless-memory"),
        pytest.param({}, {"core_scaling": float("nan")}, "not a number", id="not-a-number"),
        pytest.param({"uuid": "GPU-a,b"}, {}, "cannot be registered", id="separator-in-the-uuid"),
        pytest.param({"name": "NVIDIA \ud800"}, {}, "cannot be registered", id="text-that-is-no-text"),
        pytest.param({"index": -1}, {}, "cannot be registered", id="negative-index"),
        pytest.param({"mig_enabled": True}, {"mig_strategy": "mixed"}, "MIG is enabled", id="cut-by-somebody-else"),
    ],
)
def test_a_card_that_cannot_be_registered_is_left_out_alone(
    card: dict[str, Any], node: dict[str, Any], reason: str
) -> None:
    chosen = settings(**node)
    assert reason in why_left_out(facts(**card), chosen)
    if card:
        both = registrable(Fleet((CardState(facts(**card)), CardState(facts(uuid="GPU-b", index=1)))), chosen)
        assert [device.uuid for device in both.devices] == ["GPU-b"]


def test_a_model_that_the_text_form_cannot_carry_is_left_out_there_only() -> None:
    odd = facts(name="NVIDIA A100, special")
    assert registered(odd, settings())["type"] == "NVIDIA A100, special"
    assert "text form" in why_left_out(odd, settings(text=True))


def test_a_card_with_mig_enabled_is_registered_where_no_strategy_forbids_it() -> None:
    assert registered(facts(mig_enabled=True), settings())["count"] == 10


# -- MIG


def offer(name: str, profile_id: int, sms: int, instances: int, memory: int) -> GpuInstanceProfile:
    slices = int(name.partition("g")[0])
    size = max(slices, 1)
    places = tuple(MigPlacement(start, size) for start in range(instances))
    media = name.endswith("+me")
    return GpuInstanceProfile(name, profile_id, slices, memory, sms, instances, places, media)


H200_OFFERS = (
    offer("1g.18gb", 19, 16, 7, 16384),
    offer("1g.18gb+me", 20, 16, 1, 16384),
    offer("1g.35gb", 15, 26, 4, 33280),
    offer("2g.35gb", 14, 32, 3, 33280),
    offer("3g.71gb", 9, 60, 2, 71424),
    offer("4g.71gb", 5, 64, 1, 71424),
    offer("7g.141gb", 0, 132, 1, 141824),
)


H200 = {"name": "NVIDIA H200", "memory_bytes": 143771 * MIB, "mig_capable": True, "mig_profiles": H200_OFFERS}


H100_OFFERS = (
    offer("1g.10gb", 19, 16, 7, 9856),
    offer("1g.20gb", 15, 26, 4, 19968),
    offer("2g.20gb", 14, 32, 3, 19968),
    offer("3g.40gb", 9, 60, 2, 40192),
    offer("4g.40gb", 5, 64, 1, 40192),
    offer("7g.80gb", 0, 132, 1, 80384),
)


H100 = {"name": "NVIDIA H100 80GB HBM3", "mig_capable": True, "mig_profiles": H100_OFFERS}


A100 = {
    "name": "NVIDIA A100 80GB PCIe",
    "mig_profiles": (
        offer("1g.10gb", 19, 14, 7, 9728),
        offer("2g.20gb", 14, 28, 3, 19968),
        offer("3g.40gb", 9, 42, 2, 40192),
        offer("7g.80gb", 0, 98, 1, 81050),
    ),
}


CHART = tuple(CHART_ALLOWLIST)


def mig(card: dict[str, Any], *allowances: MigAllowance) -> dict[str, Any]:
    return registered(facts(**card), settings(mode="mig", allowances=allowances, memory_scaling=2.0, core_scaling=2.0))


def profiles(found: dict[str, Any]) -> list[str]:
    return [profile["name"] for profile in found["migProfiles"]]


def test_a_card_to_be_cut_is_registered_with_its_profiles_and_without_scaling() -> None:
    found = mig(H200, allow(("H200",), ("1g.18gb", "7g.141gb")))
    assert found == {
        "id": UUID,
        "count": 7,
        "devmem": 143771,
        "devcore": 100,
        "type": "NVIDIA H200",
        "mode": "mig",
        "health": True,
        "migProfiles": [
            {
                "name": "1g.18gb",
                "memoryMB": 16384,
                "core": 13,
                "sliceCount": 1,
                "placements": [{"start": start, "size": 1} for start in range(7)],
            },
            {
                "name": "7g.141gb",
                "memoryMB": 141824,
                "core": 100,
                "sliceCount": 7,
                "placements": [{"start": 0, "size": 7}],
            },
        ],
    }


def test_the_share_of_cores_is_rounded_up_and_measured_by_the_largest_profile_of_the_card() -> None:
    found = mig(H200, allow(("H200",), ("2g.35gb", "3g.71gb")))
    assert [profile["core"] for profile in found["migProfiles"]] == [25, 46]
    assert found["count"] == 3


@pytest.mark.parametrize(
    ("card", "allowances", "names"),
    [
        pytest.param(
            H200,
            (),
            ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"],
            id="no-list-allows-everything-once",
        ),
        pytest.param(H200, (allow(("H200",), ("1g.18gb+me",)),), ["1g.18gb+me"], id="media-by-name"),
        pytest.param(
            H200,
            (allow(("H200",), ("1g.35gb", "1g.18gb")),),
            ["1g.18gb", "1g.35gb"],
            id="both-1g",
        ),
        pytest.param(
            H200,
            (allow(("H200",), ("1g.10gb", "3g.40gb")),),
            ["1g.18gb", "3g.71gb"],
            id="names-of-a-smaller-card",
        ),
        pytest.param(H200, (allow(("H200",), ("1g.40gb",)),), ["1g.35gb"], id="the-nearest-memory"),
        pytest.param(
            H200,
            (allow(("H200",), ("1g.10gb+me",)),),
            ["1g.18gb+me"],
            id="media-of-a-smaller-card",
        ),
        pytest.param(
            H200,
            (
                allow(("A100",), ("2g.35gb",)),
                allow(("H200",), ("1g.18gb",)),
                allow(("H200",), ("7g.141gb",)),
            ),
            ["1g.18gb"],
            id="the-first-that-fits-decides",
        ),
        pytest.param(
            H200,
            (allow(("H200",), ("5g.90gb", "1g.18gb", "1g.garbage", "")),),
            ["1g.18gb"],
            id="unknown-profiles-are-skipped",
        ),
        # HAMi's own list names neither of these cards as drivers do: upstream registers no H100 at all.
        pytest.param(H200, CHART, ["1g.18gb", "2g.35gb", "3g.71gb", "7g.141gb"], id="the-chart-and-an-h200"),
        pytest.param(H100, CHART, ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"], id="the-chart-and-an-h100"),
        # 7g.79gb in the list.
        pytest.param(A100, CHART, ["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"], id="the-chart-and-an-a100"),
    ],
)
def test_profiles_are_found_by_what_the_card_offers(
    card: dict[str, Any], allowances: tuple[MigAllowance, ...], names: list[str]
) -> None:
    assert profiles(mig(card, *allowances)) == names


@pytest.mark.parametrize(
    ("card", "allowances", "reason"),
    [
        pytest.param({}, (), "supports no MIG profiles", id="cannot-be-cut"),
        pytest.param(H200, (allow(("A100",), ("1g.18gb",)),), "it supports 1g.18gb, ", id="another-model"),
        pytest.param(
            H200,
            (allow(("H200",), ("5g.90gb",)),),
            "none of its MIG profiles",
            id="another-profile",
        ),
        # The same family, but not the same cuts.
        pytest.param(
            H100,
            (allow(("H100-94GB",), ("1g.12gb",)),),
            "none of its MIG profiles",
            id="another-h100",
        ),
        pytest.param(
            H100,
            (allow(("NVIDIA X",), ("1g.10gb",)),),
            "none of its MIG profiles",
            id="no-family",
        ),
        pytest.param(
            {"mig_profiles": (GpuInstanceProfile("1g.5gb", 19, 1, 4864, 14, 7, ()),)},
            (),
            "none of its MIG profiles",
            id="nowhere-to-put-it",
        ),
    ],
)
def test_a_card_without_a_usable_profile_is_left_out(
    card: dict[str, Any], allowances: tuple[MigAllowance, ...], reason: str
) -> None:
    assert reason in why_left_out(facts(**card), settings(mode="mig", allowances=allowances))


def test_a_card_that_does_not_count_its_processors_gives_whole_shares() -> None:
    offers = (GpuInstanceProfile("1g.5gb", 19, 1, 4864, 0, 7, (MigPlacement(0, 1),)),)
    assert mig({"mig_profiles": offers})["migProfiles"][0]["core"] == 100


def test_what_is_registered_is_what_the_scheduler_reads() -> None:
    chosen = settings(mode="mig")
    devices = registrable(Fleet((CardState(facts(**H200)),)), chosen).devices
    assert decode_registration(registration_text(devices, chosen), vendor="NVIDIA") == devices


def scores(there: Links, back: Links) -> PairScores:
    return pair_scores(["a", "b"], {("a", "b"): there, ("b", "a"): back})


@pytest.mark.parametrize(
    ("there", "back", "score", "score_back"),
    [
        (Links(TopologyLevel.INTERNAL), Links(TopologyLevel.INTERNAL), 60, 60),
        (Links(TopologyLevel.SINGLE), Links(TopologyLevel.SINGLE), 50, 50),
        (Links(TopologyLevel.MULTIPLE), Links(TopologyLevel.MULTIPLE), 40, 40),
        (Links(TopologyLevel.HOST_BRIDGE), Links(TopologyLevel.HOST_BRIDGE), 30, 30),
        (Links(NODE), Links(NODE), 20, 20),
        (Links(TopologyLevel.SYSTEM), Links(TopologyLevel.SYSTEM), 10, 10),
        (Links(None), Links(None), 0, 0),
        (Links(NODE, switched=18), Links(NODE, switched=18), 1820, 1820),
        (Links(NODE, switched=18), Links(NODE, switched=4), 420, 420),
        (Links(NODE, direct=4), Links(NODE, direct=4), 420, 420),
        (Links(NODE, direct=4), Links(NODE, direct=2), 420, 220),
        (Links(NODE, direct=2, switched=16), Links(NODE, direct=2, switched=16), 220, 220),
        (Links(NODE, direct=19), Links(NODE, direct=19), 20, 20),
        (Links(NODE, switched=18), Links(NODE), 20, 20),
        (Links(None, direct=1), Links(NODE), 100, 20),
    ],
)
def test_a_pair_scores_by_its_ways(there: Links, back: Links, score: int, score_back: int) -> None:
    """Golden case 29 among them."""
    assert scores(there, back) == PairScores({"a": {"b": score}, "b": {"a": score_back}})


@pytest.mark.parametrize(
    ("there", "back"),
    [
        (Links(NODE, direct=4), Links(NODE)),
        (Links(None), Links(NODE)),
        (Links(NODE, direct=18), Links(NODE, direct=19)),
    ],
)
def test_a_pair_that_disagrees_scores_nothing_and_is_named(there: Links, back: Links) -> None:
    assert scores(there, back) == PairScores({"a": {"b": 0}, "b": {"a": 0}}, (("a", "b"),))
    assert scores(back, there).asymmetric == (("a", "b"),)


def test_one_bad_pair_does_not_cost_the_others_their_score() -> None:
    links = {(one, other): Links(NODE) for one in "abc" for other in "abc" if one != other}
    links["a", "b"] = Links(NODE, direct=1)
    found = pair_scores(["c", "a", "b"], links)
    assert found.scores == {"c": {"a": 20, "b": 20}, "a": {"c": 20, "b": 0}, "b": {"c": 20, "a": 0}}
    assert found.asymmetric == (("a", "b"),)


def test_a_pair_that_nobody_asked_about_scores_nothing() -> None:
    assert pair_scores(["a", "b"], {}) == PairScores({"a": {"b": 0}, "b": {"a": 0}})


@pytest.mark.parametrize(("uuids", "rows"), [([], {}), (["a"], {"a": {}})])
def test_a_card_alone_has_an_empty_row(uuids: list[str], rows: dict[str, dict[str, int]]) -> None:
    assert pair_scores(uuids, {}) == PairScores(rows)


def test_scores_can_be_written_on_a_node() -> None:
    found = scores(Links(NODE, switched=18), Links(NODE, switched=18))
    assert decode_pair_scores(encode_pair_scores(found.scores)) == found.scores
