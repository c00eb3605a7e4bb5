"""What commands write as JSON and YAML cannot steer the terminal that shows it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tessera
from tessera.cli import journal
from tessera.host.cards import UnreadableCard
from tessera.inspect.journal_filter import RecordFilter
from tessera.inspect.render.documents import encode_document, encode_stream_document, make_document
from tessera.inspect.snapshots import decode_snapshot, encode_snapshot
from tessera.inspect.state import ClusterState
from tessera.node.inventory import as_json
from tessera.node.registration.devices import pair_scores
from tessera.services.terminal_json import encode_json
from tessera.wire.journal import Record, Start, decode_record

HOSTILE = "a\x9b31m\u202eb\x7f\u2028\ufeff\x1b[2J\x00é漢\U000e0001"
SOURCE = Path(tessera.__file__).parent


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)), st.sampled_from([0, 2])
)
def test_what_is_written_is_printable_and_means_the_same(content: object, indent: int) -> None:
    text = encode_json(content, indent=indent)
    assert is_harmless(text)
    assert json.loads(text) == content
    assert encode_json(content, indent=indent, ascii_only=True).isascii()


def test_letters_of_all_languages_stay_as_they_are() -> None:
    assert encode_json({"é": "漢"}) == '{"é":"漢"}\n'


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_documents_of_all_commands(form: str, ascii_only: bool) -> None:
    document = make_document("CardUsageList", None, [{"name": HOSTILE, HOSTILE: 1}])
    read: Callable[[str], object] = json.loads if form == "json" else yaml.safe_load
    whole = encode_document(document, form, ascii_only=ascii_only)
    one_of_many = encode_stream_document(document, form, taken=0.0, ascii_only=ascii_only)
    assert is_harmless(whole)
    assert is_harmless(one_of_many)
    assert read(whole) == document


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_snapshots(form: str) -> None:
    state = ClusterState("here", 0.0, nodes=({"metadata": {"name": HOSTILE}},))
    data = encode_snapshot(state, form=form)
    assert is_harmless(data.decode())
    assert decode_snapshot(data, file="f").nodes == state.nodes


async def test_records_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Start(
        sequence=1,
        time=0.0,
        format=1,
        version="1",
        identity=HOSTILE,
        device_sections=None,
        node_policy="",
        device_policy="",
        scheduler_name="s",
    )

    async def records() -> AsyncIterator[Record]:
        yield record

    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
    await journal._print_json(records(), RecordFilter())
    monkeypatch.undo()
    assert is_harmless(out.getvalue().decode())
    assert decode_record(out.getvalue()) == record


def test_the_inventory_of_a_node() -> None:
    text = as_json([UnreadableCard(0, HOSTILE)], {}, pair_scores([], {}), {})
    assert is_harmless(text)
    assert json.loads(text)["cards"][0]["problem"] == HOSTILE


def test_no_other_module_writes_json_for_people() -> None:
    writers = re.compile(r"json\.format\(|echo\((json|msgspec)")
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if writers.search(path.read_text())}
    assert found - {"host/simulated/hardware.py"} == {"services/terminal_json.py"}, "the other one writes its own file"
