from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tessera.host.nvml.hardware import NvmlHardware
from tessera.host.simulated.hardware import SimulatedHardware
from tessera.node.inventory import choose_hardware, main
from tessera.node.settings import AgentSettings, Configuration, InventoryKind, Paths
from tessera.wire.config_file import ConfigError
from tests.support.fake_nvml import without_library

CARDS = """
cards:
- {model: H200, mig: true}
- {model: V100, count: 2, memory: 0}
- {model: L4, problem: GPU is lost}
links: [{cards: [1, 2], nvlinks: 1, through: cards, one_way: true}]
"""


@pytest.fixture
def no_library() -> Iterator[None]:
    with without_library():
        yield


def told(kind: InventoryKind, root: Path, simulated: Path | None = None) -> Configuration:
    settings = AgentSettings(node_name="n", paths=Paths(driver_root_here=root))
    return Configuration(settings=settings, inventory=kind, simulated=simulated)


def test_nothing_may_be_asked_for(tmp_path: Path) -> None:
    assert choose_hardware(told(InventoryKind.NULL, tmp_path)).scan() == []


def test_nvml_is_taken_also_while_there_is_no_driver(tmp_path: Path) -> None:
    assert isinstance(choose_hardware(told(InventoryKind.NVML, tmp_path)), NvmlHardware)


def test_auto_has_no_cards_while_there_is_no_driver(
    tmp_path: Path, no_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.host.nvml.session.LIBRARY", "libnot-there.so.1")
    assert choose_hardware(told(InventoryKind.AUTO, tmp_path)).scan() == []


def test_simulated_cards_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(CARDS)
    chosen = choose_hardware(told(InventoryKind.SIMULATED, tmp_path, path))
    assert isinstance(chosen, SimulatedHardware)
    assert len(chosen.scan()) == 4


def test_simulated_cards_need_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need a file"):
        choose_hardware(told(InventoryKind.SIMULATED, tmp_path))
    with pytest.raises(ConfigError):
        choose_hardware(told(InventoryKind.SIMULATED, tmp_path, tmp_path / "none.yaml"))


def shown(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, args)
    return result.exit_code, result.output


def test_the_cards_can_be_printed(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("state: state.json\n" + CARDS)
    chosen = choose_hardware(told(InventoryKind.SIMULATED, tmp_path, path))
    card = chosen.scan()[0]
    chosen.create(card.uuid, card.mig_profiles[0], card.mig_profiles[0].placements[0])  # type: ignore[arg-type,union-attr]
    code, text = shown("--simulate", str(path), "--node-name", "n")
    assert code == 0
    for part in (
        "NVIDIA H200  143771 MiB",
        "3g.71gb",
        "unreadable: GPU is lost",
        "asymmetric: GPU-",
        "GI 0 profile 19",
    ):
        assert part in text


def test_the_cards_can_be_printed_for_programs(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text(CARDS)
    code, text = shown("--simulate", str(path), "--node-name", "n", "-o", "json")
    document = json.loads(text)
    assert code == 0
    assert [card["index"] for card in document["cards"]] == [0, 1, 2, 3]
    assert document["cards"][0]["mig_profiles"][0]["name"] == "1g.18gb"
    assert len(document["links"]) == 6
    assert len(document["asymmetric"]) == 1


def test_a_node_without_cards_prints_that(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("cards: []")
    assert shown("--simulate", str(path)) == (0, "no cards\n")


def test_a_file_that_is_wrong_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{model: X}]")
    code, text = shown("--simulate", str(path))
    assert code == 1
    assert f"{path}:1: cards[0].model: unknown model" in text


def test_a_machine_without_a_driver_is_explained(
    tmp_path: Path, no_library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessera.host.nvml.session.LIBRARY", "libnot-there.so.1")
    code, text = shown("--driver-root", str(tmp_path))
    assert code == 1
    assert "cannot load libnot-there.so.1" in text
