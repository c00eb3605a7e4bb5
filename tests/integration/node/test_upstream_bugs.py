"""For each of HAMi's known faults that concerns the agent, a test that HAMi would fail. The rows are those of
docs/protocol.md, sections 8.1 and 8.2; rows that are not here concern the monitor, the chart or the library.

    8.1 1  test_golden_38_a_card_that_cannot_be_read_takes_no_other_with_it
    8.1 1  test_hardware_that_cannot_be_read_is_asked_again_every_five_seconds
    8.1 2  test_an_agent_without_kubelet_and_apiserver_waits_for_both
    8.1 2  test_any_number_of_failures_to_serve_does_not_end_the_agent
    8.1 2  test_a_bad_yaml_file_changes_nothing_and_is_said
    8.1 2  test_a_lock_folder_that_cannot_be_made_refuses_pods_and_ends_nothing
    8.1 3  test_a_node_that_is_told_nothing_has_defaults
    8.1 4  test_golden_39_a_registration_that_failed_is_made_up_for
    8.1 4  test_cards_are_registered_with_one_patch_and_then_left_alone
    8.1 4  test_an_annotation_that_somebody_deletes_or_changes_comes_back
    8.1 5  test_nothing_of_an_earlier_configuration_goes_on
    8.1 6  test_different_slices_are_never_guessed_between_and_nobody_is_marked_failed
    8.1 6  test_a_pod_that_has_its_devices_is_never_the_one_that_is_meant
    8.1 7  test_writing_is_repeated_until_the_api_takes_it
    8.1 7  test_a_lock_that_somebody_left_behind_goes
    8.1 8  test_a_pod_with_devices_for_its_init_container_only_needs_no_lock
    8.1 9  test_every_stream_hears_of_a_card_that_falls_ill_and_of_its_recovery
    8.1 9  test_what_happens_while_nobody_listens_holds_nobody_up_and_is_in_the_first_list
    8.1 9  test_a_wait_that_fails_makes_all_cards_unhealthy_and_is_no_busy_loop
    8.1 9  test_the_two_lists_decide_which_reports_are_fatal
    8.1 14  test_a_pod_that_terminates_keeps_its_instance_until_it_is_gone
    8.1 14  test_a_pod_that_changes_meanwhile_keeps_both_changes
    8.1 14  test_a_bad_reservation_is_reported_once_and_the_others_are_taken_over
    8.1 14  test_the_media_variant_of_a_profile_is_not_its_plain_sibling
    8.1 14  test_profiles_are_found_by_what_the_card_offers
    8.1 14  test_cards_that_are_filtered_out_are_left_alone
    8.1 14  test_an_instance_is_in_the_cdi_spec_before_the_container_is_told_of_it
    8.1 14  test_device_nodes_of_an_instance_are_known_at_its_handover
    8.1 15  test_instances_of_every_kind_are_a_resource_of_their_own_and_need_no_waiting_pod
    8.1 15  test_cards_that_are_not_cut_are_shared_and_registered_beside_the_instances
    8.2 16  test_kubelet_learns_the_same_options_from_the_registration_and_from_the_call
    8.2 17  test_for_sharing_the_nodes_own_json_wins_over_the_yaml_which_wins_over_flags
    8.2 17  test_the_core_limit_is_off_where_the_file_says_so_or_else_the_flag
    8.2 18  test_golden_7_a_split_count_of_zero_is_what_the_node_file_says_it_is
    8.2 19  test_a_broken_node_file_leaves_the_last_good_one_in_force_over_a_restart_too
    8.2 20  test_a_mode_that_nobody_knows_is_said_and_not_taken
    8.2 21  test_what_has_no_effect_is_said_and_never_a_reason_to_stop
    8.2 22  test_the_library_is_told_where_it_is_unless_it_is_at_home
    8.2 23  test_slices_stand_in_the_order_of_the_cards_and_not_of_the_annotation
    8.2 23  test_two_cards_are_limited_one_by_one_in_the_order_in_which_the_container_counts_them
    8.2 23  test_indices_are_in_order_whatever_the_order_of_the_request
    8.2 25  test_golden_5_a_type_begins_with_nvidia_once
    8.2 26  test_trailing_separators_of_other_plugins_do_not_grow
    8.2 30  test_cores_are_scaled_and_rounded
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import grpc
import pytest

from tessera.core.model.devices import MigPlacement, MigSlot
from tessera.host.cards import CardEvent
from tessera.node.handover import assembly
from tessera.wire.keys import MIG_ALLOCATIONS
from tessera.wire.pod_devices import MigAllocation, encode_mig_allocations
from tests.support.agent import NODE, AgentNode, Json, agent_node, bound, registered, take_lock, unlocked, writes
from tests.support.logs import captured

TESTS = Path(__file__).parents[2]
ROW = re.compile(r"^    (8\.[12]) ([0-9]+)  (test_\w+)$", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
CONCERN_THE_AGENT = {
    *(("8.1", number) for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 15)),
    *(("8.2", number) for number in (16, 17, 18, 19, 20, 21, 22, 23, 25, 26, 30)),
}


def test_every_row_that_concerns_the_agent_has_a_test_and_every_test_of_the_table_exists() -> None:
    rows = ROW.findall(__doc__ or "")
    assert {(section, int(number)) for section, number, *_ in rows} == CONCERN_THE_AGENT
    tests = {name for path in TESTS.rglob("test_*.py") for name in TEST.findall(path.read_text(encoding="utf-8"))}
    assert {name for *_, name in rows} <= tests


async def test_a_lock_folder_that_cannot_be_made_refuses_pods_and_ends_nothing(tmp_path: Path) -> None:
    """8.1 2: upstream ends at once."""
    (tmp_path / "lock").write_text("a file")
    async with agent_node(tmp_path) as node:
        await registered(node)
        await bound(node, "p", [[node.slice(0, memory=1000)]])
        with pytest.raises(grpc.aio.AioRpcError, match="lock"):
            await node.allocate(1)
        await node.phase_is("p", "failed")
        (tmp_path / "lock").unlink()
        await bound(node, "q", [[node.slice(0, memory=1000)]])
        await node.allocate(1, holder=("q", "c0"))
        await node.phase_is("q", "success")


async def test_a_node_that_is_told_nothing_has_defaults(tmp_path: Path) -> None:
    """8.1 3: upstream crashes at the first list, registration or Allocate."""
    async with agent_node(tmp_path, flags={"config-file": ""}) as node:
        assert [(card["count"], card["devmem"], card["devcore"]) for card in await registered(node)] == [
            (10, 81920, 100),
            (10, 81920, 100),
        ]
        assert len(node.kubelet.health) == 20
        await bound(node, "p", [[node.slice(0, memory=1000)]])
        assert "LIBCUDA_LOG_LEVEL" not in (await node.allocate(1)).envs


def running() -> Counter[str]:
    """The agent's parts, by the coroutine that each task runs."""
    coroutines = (task.get_coro() for task in asyncio.all_tasks())
    return Counter(name for each in coroutines if (name := getattr(each, "__qualname__", "")) in PARTS)


PARTS = {"NodeRegistrar.run", "Plugin.run", "Reconciler.run", "HardwareWatch.run", "NodeHandover.run", "Agent.run"}


def are_split(count: int, cards: list[Json]) -> bool:
    return bool(cards) and all(card["count"] == count for card in cards)


async def test_nothing_of_an_earlier_configuration_goes_on(tmp_path: Path) -> None:
    """8.1 5: upstream leaves a registration loop behind at every restart, which writes what it knew then."""
    async with agent_node(tmp_path) as node:
        before = running()
        for count, split in enumerate((7, 8, 9), start=2):
            node.configure(devicesplitcount=split)
            os.kill(os.getpid(), signal.SIGHUP)
            await node.kubelet.registered(times=count)
            await registered(node, partial(are_split, split))
        await node.kubelet.restart()
        await node.kubelet.registered(times=5)
        await node.kubelet.listed(lambda health: len(health) == 18)
        assert running() == before
        node.plane.server.journal.clear()
        node.hardware.push(CardEvent(node.card(0).uuid, xid=79))
        (sick, _) = await registered(node, lambda cards: any("health" not in card for card in cards))
        assert sick["count"] == 9
        assert writes(node, f"/nodes/{NODE}") == [("PATCH", f"/api/v1/nodes/{NODE}")]


async def test_a_lock_that_somebody_left_behind_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8.1 7: upstream blocks the node until the lock expires after five minutes."""
    monkeypatch.setattr(assembly, "SWEEP_S", 0.02)
    async with agent_node(tmp_path) as node:
        await bound(node, "p", [[node.slice(0, memory=1000)]])
        await node.allocate(1, holder=("p", "c0"))
        await node.phase_is("p", "success")
        for owner in ("p", "a-pod-that-is-gone"):
            await take_lock(node, owner)
            await unlocked(node)


async def test_a_pod_with_devices_for_its_init_container_only_needs_no_lock(tmp_path: Path) -> None:
    """8.1 8: the scheduler takes no lock for such a pod, and upstream then answers for the first pod that it finds."""
    async with agent_node(tmp_path) as node:
        await bound(node, "other", [[node.slice(1, memory=2000), node.slice(0, memory=2000)]])
        await bound(node, "p", [[node.slice(0, memory=1000)], []], inits=1)
        answer = await node.allocate(1)
        assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
        await node.phase_is("p", "success")
        assert node.annotations("other")["hami.io/bind-phase"] == "allocating"


async def instance(node: AgentNode, pod: str, *, start: int) -> str:
    """A pod that has an instance of card 0; the instance's uuid."""
    slot = MigSlot("1g.18gb", MigPlacement(start, 1))
    text = encode_mig_allocations([MigAllocation(0, 0, node.card(0).uuid, slot)])
    await bound(node, pod, [[node.slice(0, memory=16384, cores=14)]], annotations={MIG_ALLOCATIONS: text})
    return str((await node.allocate(1, holder=(pod, "c0"))).envs["NVIDIA_VISIBLE_DEVICES"])


async def test_a_pod_that_terminates_keeps_its_instance_until_it_is_gone(tmp_path: Path) -> None:
    """8.1 14: upstream takes the instance away while the pod has its time to end."""
    async with agent_node(tmp_path, cards={"cards": [{"model": "H200"}]}, node={"operatingmode": "mig"}) as node:

        def there() -> set[str | None]:
            return {each.mig_uuid for each in node.hardware.instances(node.card(0).uuid)}

        slow, done = await instance(node, "slow", start=0), await instance(node, "done", start=1)
        await node.plane.delete_pod("default", "slow", grace_s=30)
        assert "deletionTimestamp" in node.pod("slow")["metadata"]
        await node.plane.delete_pod("default", "done", grace_s=0)
        # Settled after both were told: the one that is gone has none any more.
        await node.until(lambda: done not in there())
        assert there() == {slow}
        await node.plane.delete_pod("default", "slow", grace_s=0)
        await node.until(lambda: not there())


async def test_a_mode_that_nobody_knows_is_said_and_not_taken(tmp_path: Path) -> None:
    """8.2 20: upstream registers any word and then behaves as in hami-core."""
    with captured() as logs:
        async with agent_node(tmp_path, node={"operatingmode": "time-slicing"}) as node:
            assert {card["mode"] for card in await registered(node)} == {"hami-core"}
    assert any("time-slicing" in event["problem"] for event in logs.of("configuration fault"))
