"""Names as a hostile tenant or a broken agent would choose them, and clusters that have them."""

from __future__ import annotations

from tests.ui.described_cluster import A100, H100, L4, NOW, DescribedCluster

CALL = "document.title='owned';alert(1)"
HOSTILE_NAMES = (
    f"<script>{CALL}</script>",
    f'"><img src=x onerror="{CALL}">',
    f"'><svg/onload={CALL}>",
    "<b>bold</b>&lt;i&gt;&amp;",
    "javascript:alert(1)",
    "</textarea></style><iframe src=//example.invalid>",
    "\u202egpj.exe\u202c \u2066mixed\u2069",
    "שלום عالم",
    "zero\u200bwidth\ufeff",
    "control\u0000\u0007\u001b[31mred\u007f",
    "line\nbreak\ttab\r\u2028",
    "x" * 2000,
    "${alert(1)}{{7*7}}%00%3Cscript%3E",
    "__proto__",
    "constructor",
    "#view=totals&token=stolen",
    "a/b/c?x=1&y=2",
    "",
)


def hostile_cluster() -> DescribedCluster:
    """Every name of a tenant, every text about one, and every name of a node, a card and a model is hostile."""
    cluster = DescribedCluster(name=HOSTILE_NAMES[0], problem=f"cannot read {HOSTILE_NAMES[1]}")
    for number, name in enumerate(HOSTILE_NAMES):
        node = f"{name}-{number}"
        cluster.add_node(node, f"{name} model", 2, mode=name[:40], problem=name if number % 3 == 0 else "")
        for card in cluster.nodes[node]["cards"]:
            card[1], card[8] = f"GPU-{card[0]}-{name}", f"group {name}"
        cluster.place(
            *(f"{name}-ns", f"{name}-pod", node, 0),
            memory=8000,
            cores=40,
            owner=(f"{name}-kind", f"{name}-owner"),
            profile=name,
        )
        cluster.set_state(node, 1, f"unhealthy: {name}" if number % 2 else f"cordoned: {name}")
        texts = {field: f"{field} {name}" for field in ("asks", "why", "nearest", "change")}
        cluster.wait(f"{name}-ns", f"{name}-waiting", owner=[f"{name}-kind", f"{name}-owner"], **texts)
        members = [[f"{name}-member", "waits", name]]
        cluster.wait_as_gang(f"{name}-ns", f"{name}-gang", members, why=f"why {name}", asks=f"asks {name}")
        cluster.hold(f"{name}-ns", f"{name}-gang", node, 1, memory=1000, cores=10, until=NOW)
        cluster.nominate(
            *(f"{name}-ns", f"{name}-waiting", node, 0), memory=9000, leaving=[f"uid-{name}-ns-{name}-pod"], until=NOW
        )
        cluster.record(NOW - 600.0 + number, name, f"{name}-ns/{name}-pod", node, f"text {name}")
    return cluster


def troubled_cluster() -> DescribedCluster:
    """What goes wrong in a real one: cards that fail, nodes that cannot be read, cards that take no pods, odd names."""
    cluster = DescribedCluster(name="prod-eu-west", problem="2 of 9 nodes cannot be read; tessera doctor says why")
    cluster.add_node("h100-1", H100, 8, linked=8)
    cluster.add_node("h100-2", H100, 8, linked=8)
    cluster.add_node("a100-1", A100, 8, mode="mig")
    cluster.add_node("a100-2", A100, 4, linked=2)
    cluster.add_node("l4-1", L4, 1)
    cluster.add_node("l4-2", L4, 1, mode="mps")
    cluster.add_node("broken-1", L4, 0, problem="its registration is not valid JSON")
    cluster.add_node("broken-2", A100, 2, problem="its agent has not reported for 14 min")
    cluster.add_node(HOSTILE_NAMES[1], L4, 2)
    for index, card in enumerate(cluster.nodes["h100-1"]["cards"]):
        cluster.place(
            *("training", f"large-run-{index}", "h100-1", index), memory=card[4], cores=100, owner=("Job", "large-run")
        )
    cluster.set_state("h100-1", 2, "unhealthy: XID 79, the card has fallen off the bus")
    for index in range(4, 8):
        cluster.set_state("h100-2", index, "cordoned")
    cluster.place("chat", "answer-0", "h100-2", 0, 1, memory=30000, cores=40, owner=("StatefulSet", "answer"), used=0.0)
    cluster.place("chat", "answer-1", "h100-2", 4, memory=30000, cores=40, owner=("StatefulSet", "answer"))
    for index in range(3):
        cluster.place(
            *("risk", f"scoring-{index}", "a100-1", index),
            memory=20096,
            cores=43,
            owner=("Deployment", "scoring"),
            profile="3g.20gb",
        )
        cluster.place(
            *("risk", f"small-{index}", "a100-1", index),
            memory=4864,
            cores=14,
            owner=("Job", "small"),
            profile="1g.5gb",
        )
    cluster.place(
        "search", "index-0", "a100-2", 0, 1, memory=39000, cores=100, owner=("StatefulSet", "index"), used=0.99
    )
    cluster.place(HOSTILE_NAMES[6], HOSTILE_NAMES[11], "l4-1", 0, memory=12000, cores=50, owner=("Job", "x" * 200))
    cluster.place(HOSTILE_NAMES[0][:60], HOSTILE_NAMES[1], "l4-2", 0, memory=20000, cores=90)
    cluster.set_state("l4-2", 0, "unhealthy")
    cluster.wait(HOSTILE_NAMES[0], HOSTILE_NAMES[11], why=HOSTILE_NAMES[1])
    cluster.wait(
        *("training", "large-run-8"),
        since=NOW - 93_000.0,
        asks="8 x 81559 MiB, 100 cores, on one NVLink group",
        why="needs 8 cards that fit on one node; the most are 2 on h100-2",
        nearest="h100-2: cards 2 and 3 are free, 4 to 7 are cordoned",
        change="2 instead of 8 cards would fit on h100-2",
        attempts=1188,
    )
    return cluster
