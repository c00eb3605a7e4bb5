"""The story without a terminal: lines for people, documents for programs, a picture for the README."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import yaml

from tessera_lab.demo.live import draw_picture
from tessera_lab.demo.screens import CardView, ClusterView, DemoStarted, DocumentScreen, PlainScreen, SliceView

STARTED = DemoStarted("http://127.0.0.1:1", "/k", "/f", 0.5, ("export KUBECONFIG=/k", "kubectl get pods"))
EMPTY = CardView("n1", 0, "L4", "hami-core", 23034, 0, 100, 0, "", ())
HALF = CardView("n1", 0, "L4", "hami-core", 23034, 11517, 100, 20, "", (SliceView("chat", 11517, 20),))
OTHER = CardView("n2", 0, "T4", "hami-core", 15360, 0, 100, 0, "", ())
BEFORE, AFTER = ClusterView((EMPTY, OTHER), ()), ClusterView((HALF, OTHER), ())


def test_plain_lines_show_the_cards_that_changed_and_no_others() -> None:
    said: list[str] = []
    screen = PlainScreen(said.append)
    screen.on_started(STARTED, BEFORE)
    screen.on_step(1, "A pod comes.")
    screen.on_result(["It runs."], AFTER)
    screen.on_result(["Nothing happened."], AFTER)
    assert said == [
        "A cluster of 2 nodes with 2 simulated cards is ready after 0.5 s.",
        "Try this in another terminal:",
        "  export KUBECONFIG=/k",
        "  kubectl get pods",
        "",
        "1. A pod comes.",
        "   It runs.",
        "   n1       card 0  █████░░░░░   11517/23034 MiB   20/100 cores  chat 11517",
        "   Nothing happened.",
    ]


def test_plain_lines_can_do_without_blocks() -> None:
    said: list[str] = []
    screen = PlainScreen(said.append, ascii_only=True)
    screen.on_started(STARTED, BEFORE)
    screen.on_result([], AFTER)
    assert "#####....." in said[-1]
    assert said[-1].isascii()


def test_json_is_one_document_a_line() -> None:
    said: list[str] = []
    screen = DocumentScreen(said.append, "json")
    screen.on_started(STARTED, BEFORE)
    screen.on_step(1, "A pod comes.")
    screen.on_result(["It runs."], AFTER)
    screen.on_end("over")
    begun, step = [json.loads(line) for line in said]
    assert (begun["kind"], begun["kubeconfig"]) == ("DemoStarted", "/k")
    assert (step["kind"], step["number"], step["told"]) == ("DemoStep", 1, ["It runs."])
    assert step["cards"][0]["slices"] == [{"pod": "chat", "memoryMib": 11517, "cores": 20}]


def test_yaml_is_a_stream_of_documents() -> None:
    said: list[str] = []
    screen = DocumentScreen(said.append, "yaml")
    screen.on_started(STARTED, BEFORE)
    screen.on_result(["It runs."], AFTER)
    assert [each["kind"] for each in yaml.safe_load_all("\n".join(said))] == ["DemoStarted", "DemoStep"]


def test_the_picture_is_an_svg_that_needs_nothing_from_the_network() -> None:
    text = draw_picture([("A pod comes.", ["It runs."])], AFTER)
    words = "".join(ElementTree.fromstring(text).itertext()).replace("\xa0", " ")
    assert "1. A pod comes." in words
    assert "chat" in words
    assert "url(" not in text.replace("url(#", "")
