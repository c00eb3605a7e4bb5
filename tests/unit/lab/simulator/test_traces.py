from __future__ import annotations

from pathlib import Path

import pytest

from tessera_lab.simulator.simulation import generate_arrivals
from tessera_lab.simulator.traces import (
    TraceError,
    TraceNode,
    TraceRequest,
    make_trace,
    read_nodes,
    read_pods,
    read_trace,
    write_trace,
)
from tests.unit.lab.simulator.made_up import nodes, pod, trace


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_nodes_and_pods_are_read_from_csv(tmp_path: Path) -> None:
    made = written(tmp_path, "nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,T4\n")
    pods = written(
        tmp_path,
        "pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
        "p,4000,1024,1,470,T4|A10,10,70,20\nq,500,64,0,0,,,,\n",
    )
    assert read_nodes(made) == (TraceNode("a", 64_000, 262_144, 2, "T4"),)
    first, second = read_pods(pods)
    assert first.ask == TraceRequest(4_000, 1_024, 1, 470, ("A10", "T4"))
    assert first.lasts == 50.0
    assert second.ask == TraceRequest(500, 64)
    assert second.lasts is None


def test_equal_nodes_may_be_written_once_in_yaml(tmp_path: Path) -> None:
    text = "nodes:\n- {name: a, cpu_milli: 8000, memory_mib: 1024, gpu: 1, model: T4, count: 3}\n"
    made = read_nodes(written(tmp_path, "nodes.yaml", text))
    assert [node.name for node in made] == ["a-0000", "a-0001", "a-0002"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sn,memory_mib,gpu\na,1,1\n", "cpu_milli is missing"),
        ("sn,cpu_milli,memory_mib,gpu\na,much,1,1\n", "a number of 0 or more"),
        ("sn,cpu_milli,memory_mib,gpu\na,1,1,0\n", "no node has a card"),
        ("sn,cpu_milli,memory_mib,gpu\na,1,1,1\na,1,1,1\n", "the same name"),
    ],
)
def test_a_cluster_that_cannot_be_used_says_why(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        read_nodes(written(tmp_path, "nodes.csv", text))


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("p,1,1,2,500", "is not a valid request"),
        ("p,1,1,1,1500", "is not a valid request"),
        ("p,1,1,0,0", "no pod requests a card"),
    ],
)
def test_pods_that_cannot_be_used_say_why(tmp_path: Path, row: str, says: str) -> None:
    path = written(tmp_path, "pods.csv", f"name,cpu_milli,memory_mib,num_gpu,gpu_milli\n{row}\n")
    with pytest.raises(TraceError, match=says):
        read_pods(path)


def test_a_missing_file_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path / "none.csv")


def test_a_made_up_trace_reads_back_as_it_was_written(tmp_path: Path) -> None:
    made = make_trace(nodes=3, seed=4)
    write_trace(made, tmp_path / "nodes.csv", tmp_path / "pods.csv")
    back = read_trace(tmp_path / "nodes.csv", tmp_path / "pods.csv")
    assert back.nodes == made.nodes
    assert [pod.ask for pod in back.pods] == [pod.ask for pod in made.pods]
    assert made == make_trace(nodes=3, seed=4)
    assert made != make_trace(nodes=3, seed=5)


class TestArrivals:
    world = trace(nodes(2), pod("a"), pod("b", milli=500), pod("c", cards=0))

    def test_every_pod_comes_once_before_any_comes_again(self) -> None:
        came = [each.name for each in generate_arrivals(self.world, 1, until=2.0)]
        assert sorted(came[:3]) == ["a", "b", "c"]
        assert set(came[3:]) <= {"a", "b", "c"}

    def test_they_stop_when_enough_is_asked_for(self) -> None:
        asked = [each.ask.demand for each in generate_arrivals(self.world, 1, until=1.5)]
        assert sum(asked) >= 3_000 > sum(asked[:-1])

    def test_a_seed_is_an_order(self) -> None:
        orders = [[each.name for each in generate_arrivals(self.world, seed, until=9.0)] for seed in (1, 1, 2)]
        assert orders[0] == orders[1] != orders[2]
