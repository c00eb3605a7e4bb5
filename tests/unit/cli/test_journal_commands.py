"""The commands around the decision journal, on files."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from tessera.cli import main
from tessera.inspect import journal_source
from tessera.inspect.snapshots import encode_snapshot
from tessera.wire.journal import FORMAT, Placed, Record, encode_record
from tests.support.builders import node
from tests.support.cluster_states import state_of
from tests.support.journals import RecordedCluster, recorded_story, trainer

TABLE = r"""
2023-11-14 UTC
22:13:20.000  start                         tessera VERSION, process one
22:13:21.000  node        alpha-host        2 cards (NVIDIA A100-SXM4-80GB)
22:13:22.000  placed      team-a/train-0    on alpha-host: card 1 60000 MiB; score 0 [1 node, 42 us]
22:13:25.000  bind        team-a/train-0    to alpha-host
22:13:26.000  placed      team-a/train-1    on alpha-host: card 0 60000 MiB; score 4.16211 [1 node, 42 us]
22:13:29.000  bind        team-a/train-1    to alpha-host
22:13:30.000  refused     team-a/train-2    1 node: not enough free memory on the card [1 node, 42 us]
22:13:31.000  denied      team-a/bad-\x1b[31mred\x07  at admission: no: \x1b]0;title\x07 train-2
22:13:33.000  released    team-a/train-0              its cards on alpha-host: it ended
22:13:34.000  woken       team-a/train-2              fits now: kube-scheduler was made to ask again
22:13:35.000  placed      team-a/train-2              on alpha-host: card 1 60000 MiB; score 4.16211 [1 node, 42 us]
22:13:37.000  bind        team-a/train-2              not to alpha-host: the pod changed
22:13:39.000  evicted     team-a/train-1              from alpha-host: drained
22:13:40.000  gang        team-a/bad-\x1b[31mred\x07  waiting: 3 of 8 members exist
"""


def tessera(*arguments: str | Path) -> Result:
    environ = {"KUBECONFIG": "/nonexistent/kubeconfig", "HOME": "/nonexistent"}
    return CliRunner(env=environ).invoke(main, list(map(str, arguments)))


def write(path: Path, records: list[Record]) -> Path:
    path.write_bytes(b"".join(map(encode_record, records)))
    return path


@pytest.fixture
def story(tmp_path: Path) -> Path:
    return write(tmp_path / "journal.jsonl", recorded_story().records)


def kinds(result: Result) -> list[str]:
    return [json.loads(line)["kind"] for line in result.stdout.splitlines()]


# -- journal


def test_the_table_tells_what_happened_and_shows_no_control_character(story: Path) -> None:
    result = tessera("journal", "--file", story)
    assert result.exit_code == 0
    shown = TABLE.replace("VERSION", result.stdout.partition("tessera ")[2].partition(",")[0])
    assert result.stdout == shown.lstrip("\n")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--pod", "train-1"), ["placed", "pod", "pod", "bind", "pod", "evicted"]),
        (("--pod", "team-a/train-1", "--node", "alpha-host"), ["placed", "pod", "pod", "bind", "evicted"]),
        (("--pod", "train-1", "-n", "team-b"), []),
        (("-n", "team-a", "--pod", "train-2", "--since", "2023-11-14T22:13:34"), ["woken", "placed", "pod", "bind"]),
        (("--node", "beta-host"), []),
    ],
)
def test_options_select_records(story: Path, options: tuple[str, ...], found: list[str]) -> None:
    result = tessera("journal", "--file", story, "-o", "json", *options)
    assert result.exit_code == 0
    assert kinds(result) == found


def test_json_is_the_journal_itself(story: Path) -> None:
    assert tessera("journal", "--file", story, "-o", "json").stdout_bytes == story.read_bytes()


def test_the_table_begins_where_it_is_asked_to(story: Path) -> None:
    shown = tessera("journal", "--file", story, "--since", "2023-11-14T22:13:35Z").stdout.splitlines()
    assert [line.split()[1] for line in shown] == ["UTC", "placed", "bind", "evicted", "gang"]


def test_a_journal_that_begins_later_is_complete(story: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.jsonl"
    later.write_bytes(tessera("journal", "--file", story, "-o", "json", "--since", "2023-11-14T22:13:34Z").stdout_bytes)
    assert "all 0" not in tessera("replay", later).output
    assert "the decision comes out the same" in tessera("replay", later).output


def test_a_journal_without_the_state_says_why_it_cannot_be_replayed(story: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.jsonl"
    part.write_bytes(tessera("journal", "--file", story, "-o", "json", "--pod", "train-1").stdout_bytes)
    result = tessera("replay", part)
    assert result.exit_code == 2
    assert "records were filtered out" in result.output


def test_a_line_that_is_cut_off_is_noted(story: Path) -> None:
    story.write_bytes(story.read_bytes()[:-20])
    result = tessera("journal", "--file", story)
    assert result.exit_code == 0
    assert "cannot be read and is left out" in result.stderr


DAMAGE = {
    "garbage": b"\xff\xfe garbage\n",
    "zeros": b"\0" * 5_000 + b"\n",
    "half a record": b'{"kind":"placed","time":1.0,"sequ\n',
    "a kind that is not known": b'{"kind":"surprise","time":1.0,"sequence":3}\n',
    "a record without its fields": b'{"kind":"pod","time":1.0}\n',
    "deep nesting": b"[" * 100_000 + b"\n",
    "a long number": b"9" * 20_000 + b"\n",
    "a length of four bytes": b"\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("at", [0, 2, 7, -1])
def test_what_cannot_be_read_is_left_out_and_everything_else_is_shown(story: Path, damage: bytes, at: int) -> None:
    lines = story.read_bytes().splitlines(keepends=True)
    whole = tessera("journal", "--file", story, "-o", "json").stdout.splitlines()
    story.write_bytes(b"".join((*lines[:at], damage, *lines[at:])))
    result = tessera("journal", "--file", story, "-o", "json")
    # What has no end of line takes the line behind it along.
    lost = [] if damage.endswith(b"\n") else [lines[at].decode().rstrip("\n")]
    if at == 0:
        lost = []
    assert result.stdout.splitlines() == [line for line in whole if line not in lost]
    assert (result.exit_code, "cannot be read and is left out" in result.stderr) == (0, True)
    history = tessera("explain", "team-a/train-2", "--history", "--journal-file", story)
    assert "placed on alpha-host" in history.output


def test_only_so_many_places_are_named(story: Path) -> None:
    lines = story.read_bytes().splitlines(keepends=True)
    story.write_bytes(b"".join(part for line in lines * 3 for part in (line, b"?\n")))
    result = tessera("journal", "--file", story, "-o", "json")
    assert result.stderr.count("note:") == 21
    assert "more places that cannot be read" in result.stderr


def test_a_replay_ends_where_a_record_is_missing(story: Path) -> None:
    lines = story.read_bytes().splitlines(keepends=True)
    story.write_bytes(b"".join((*lines[:7], b"?\n", *lines[7:])))
    result = tessera("replay", story)
    assert (result.exit_code, "line 8: not a journal record" in result.output) == (2, True)


def test_a_line_without_end_is_not_kept(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_source, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(journal_source, "CHUNK_BYTES", 100)
    whole = tessera("journal", "--file", story, "-o", "json").stdout
    story.write_bytes(b"\0" * 100_000 + b"\n" + story.read_bytes())
    assert tessera("journal", "--file", story, "-o", "json").stdout == whole


def test_rotated_files_are_one_journal(tmp_path: Path) -> None:
    cluster = recorded_story()
    old = write(tmp_path / "journal.jsonl.1", cluster.records)
    cluster.records.clear()
    cluster.restart()
    cluster.decide(trainer(7, memory=100))
    new = write(tmp_path / "journal.jsonl", cluster.records)
    assert "all 5 decisions come out the same" in tessera("replay", old, new).output
    assert "train-7" in tessera("journal", "--file", old, "--file", new).output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("journal", "--since", "yesterday"), "neither a duration such as 90s"),
        (("journal", "--file", "STORY", "--url", "http://127.0.0.1:1"), "exclude each other"),
        (("journal", "--url", "127.0.0.1:8080"), "begins with http://"),
        (("journal", "--pod", "team-a/"), "names no pod"),
        (("journal", "--pod", "team-a/p", "-n", "team-b"), "--pod names namespace team-a"),
        (("journal", "--file", "SNAPSHOT"), "not a journal record"),
        (("journal", "--snapshot", "SNAPSHOT"), "has no journal"),
        (("journal", "--file", "/nonexistent"), "does not exist"),
        (("journal",), "cannot reach the cluster"),
        (("replay",), "Missing argument"),
        (("replay", "SNAPSHOT"), "not a journal record"),
        (("explain", "p", "--journal-file", "STORY"), "need --history"),
        (("explain", "p", "--history", "--cards"), "leave out --history"),
        (
            ("explain", "team-a/nobody", "--history", "--journal-file", "STORY"),
            "says nothing about a pod team-a/nobody",
        ),
        (("snapshot", "--with-journal", "--snapshot", "SNAPSHOT"), "name it with -o FILE.tgz"),
        (("snapshot", "--journal-file", "STORY", "--snapshot", "SNAPSHOT"), "need --with-journal"),
        (("snapshot", "--with-journal", "--snapshot", "SNAPSHOT", "-o", "/nonexistent/x"), "has no journal"),
        (
            ("snapshot", "--with-journal", "--snapshot", "SNAPSHOT", "--journal-file", "STORY", "-o", "/nonexistent/x"),
            "cannot write /nonexistent/x",
        ),
    ],
)
def test_what_cannot_be_answered_says_why(story: Path, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    snapshot = tmp_path / "s.json"
    snapshot.write_bytes(encode_snapshot(state_of([node("alpha-host").gpus(2)])))
    files = {"STORY": str(story), "SNAPSHOT": str(snapshot)}
    result = tessera(*(files.get(word, word) for word in arguments))
    assert result.exit_code == 2, result.output
    assert words in result.output


# -- replay


def changed(records: list[Record]) -> list[Record]:
    """With another score in the third placement."""
    *_, place = (place for place, record in enumerate(records) if isinstance(record, Placed))
    decision = records[place]
    return [*records[:place], msgspec.structs.replace(decision, score=1.5), *records[place + 1 :]]


def test_equal_decisions_are_counted(story: Path) -> None:
    result = tessera("replay", story)
    assert result.exit_code == 0
    assert result.output.startswith("equal: all 4 decisions come out the same\n")
    found = json.loads(tessera("replay", story, "-o", "json").output)
    assert (found["kind"], found["equal"], found["decisionsEqual"], found["difference"]) == ("Replay", True, 4, None)


def test_the_first_difference_is_shown_with_both_sides(tmp_path: Path) -> None:
    file = write(tmp_path / "changed.jsonl", changed(recorded_story().records))
    result = tessera("replay", file)
    assert result.exit_code == 1
    for words in (
        "the decision about team-a/train-2 differs",
        "it asked for 1 NVIDIA card with 60000 MiB",
        "recorded: placed on alpha-host: card 1 (alpha-host-1) 60000 MiB; score 1.5",
        "now:      placed on alpha-host: card 1 (alpha-host-1) 60000 MiB; score 4.16211",
        "the best nodes now, with their scores: alpha-host (4.16211)",
        "3 decisions before it came out the same",
    ):
        assert words in result.output
    difference = yaml.safe_load(tessera("replay", file, "-o", "yaml").output)["difference"]
    assert difference["recorded"]["score"] == 1.5
    assert difference["decided"]["node"] == "alpha-host"
    assert difference["bestNodes"] == [{"node": "alpha-host", "score": difference["decided"]["score"]}]


def test_a_gap_is_no_answer(tmp_path: Path) -> None:
    records = recorded_story().records
    result = tessera("replay", write(tmp_path / "gap.jsonl", [*records[:-3], *records[-2:]]))
    assert result.exit_code == 2
    assert "are missing, so the rest cannot be replayed" in result.output
    assert "4 decisions before are equal" in result.output


def test_a_journal_without_decisions_is_not_called_equal(tmp_path: Path) -> None:
    result = tessera("replay", write(tmp_path / "empty.jsonl", RecordedCluster().records))
    assert result.exit_code == 0
    assert "no decision that could be made again" in result.output


# -- history


def test_the_history_of_a_pod_is_its_story_with_numbers(story: Path) -> None:
    result = tessera("explain", "team-a/train-2", "--history", "--journal-file", story)
    assert result.exit_code == 1, "its last bind failed"
    texts = [line.split("Z  ")[-1].strip() for line in result.output.splitlines()[3:]]
    assert texts == [
        "asks for 1 NVIDIA card with 60000 MiB",
        "node policy binpack, card policy spread",
        "refused: none of 1 node fits; 1 node: not enough free memory on the card (2/2 CardInsufficientMemory)",
        "needs 60000 MiB; the most free on one card is 21920 of 81920 MiB on alpha-host (alpha-host-0)",
        "woken: it fits now, and kube-scheduler was made to ask again",
        "placed on alpha-host: card 1 (alpha-host-1) 60000 MiB",
        "score 4.16211, among 1 node; 5s after it was first asked about",
        "not bound to alpha-host: the pod changed",
    ]


def test_the_history_of_a_pod_that_is_gone_ends_well_if_it_ended(story: Path) -> None:
    found = tessera("explain", "train-0", "-n", "team-a", "--history", "--journal-file", story, "-o", "json")
    assert found.exit_code == 0
    (told,) = json.loads(found.output)["stories"]
    assert [step["what"] for step in told["steps"]] == ["asked", "placed", "bound", "released"]
    assert told["steps"][-1] == {"what": "released", "time": 1_700_000_013.0, "node": "alpha-host", "why": "ended"}


# -- bundles


def test_a_bundle_is_read_as_snapshot_and_as_journal_and_holds_no_name(story: Path, tmp_path: Path) -> None:
    snapshot, bundle = tmp_path / "s.json", tmp_path / "bundle.tgz"
    snapshot.write_bytes(encode_snapshot(state_of([node("alpha-host").gpus(2)], [trainer(2)])))
    given: list[str | Path] = ["--snapshot", snapshot, "--journal-file", story]
    packed = tessera("snapshot", "--with-journal", "--hash-names", "--hash-key", "k", "-o", bundle, *given)
    assert packed.exit_code == 0, packed.output
    assert f"1 node, 1 device pod, 0 quotas, {len(recorded_story().records)} journal records" in packed.output
    assert "all 4 decisions come out the same" in tessera("replay", bundle).output
    shown = [
        tessera("top", "--snapshot", bundle).output,
        tessera("journal", "--file", bundle, "-o", "json").output,
        tessera("journal", "--snapshot", bundle).output,
    ]
    for name in ("alpha", "team-a", "train", "1111-2", "drained", "the pod changed", "31mred"):
        assert all(name not in text for text in shown), name
    new = json.loads(tessera("top", "--snapshot", bundle, "-o", "json").output)["pending"]
    pod = f"{new[0]['namespace']}/{new[0]['name']}"
    assert "placed on node-1-" in tessera("explain", pod, "--history", "--snapshot", bundle).output


def test_a_bundle_that_exists_stays_if_the_journal_cannot_be_read(story: Path, tmp_path: Path) -> None:
    snapshot, bundle = tmp_path / "s.json", tmp_path / "bundle.tgz"
    snapshot.write_bytes(encode_snapshot(state_of([node("alpha-host").gpus(2)])))
    bundle.write_bytes(b"before")
    start = json.loads(story.read_bytes().splitlines()[0]) | {"format": FORMAT + 1}
    story.write_bytes(story.read_bytes() + json.dumps(start).encode())
    result = tessera("snapshot", "--with-journal", "--snapshot", snapshot, "--journal-file", story, "-o", bundle)
    assert result.exit_code == 2
    assert bundle.read_bytes() == b"before"


def test_an_archive_of_something_else_is_no_snapshot(tmp_path: Path) -> None:
    other = tmp_path / "other.tgz"
    with tarfile.open(other, "w:gz"):
        pass
    result = tessera("top", "--snapshot", other)
    assert result.exit_code == 2
    assert "has no snapshot.json" in result.output
