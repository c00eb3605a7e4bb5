"""How the programs of Kubernetes are found, built once with Go, or reported as missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.kubernetes import build

TRIO = sorted(build.TOGETHER)
FAKE_GO = """#!/bin/sh
echo "$*" >>"$0.calls"
while [ "$1" != -o ]; do shift; done
echo '#!/bin/sh' >"$2"; chmod +x "$2"
"""
FAILING_GO = """#!/bin/sh
echo 'go: something is wrong' >&2
exit 1
"""


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def environ(tmp_path: Path) -> dict[str, str]:
    places = {"KUBEBUILDER_ASSETS": "assets", "PATH": "path", "TESSERA_CACHE": "cache"}
    return {name: str(tmp_path / folder) for name, folder in places.items()}


def silent(text: str) -> None:
    """Discards progress messages."""


def test_assets_win_over_path_and_path_over_the_cache(tmp_path: Path) -> None:
    where = environ(tmp_path)
    cached = program(build.TOOLS["etcd"].cached(where))
    assert build.find(["etcd"], where) == {"etcd": cached}
    on_path = program(tmp_path / "path" / "etcd")
    assert build.find(["etcd"], where) == {"etcd": on_path}
    given = program(tmp_path / "assets" / "etcd")
    assert build.find(["etcd"], where) == {"etcd": given}


def test_programs_that_must_agree_come_from_one_place(tmp_path: Path) -> None:
    where = environ(tmp_path)
    program(tmp_path / "assets" / "kube-apiserver")
    etcd = program(tmp_path / "assets" / "etcd")
    cached = {name: program(build.TOOLS[name].cached(where)) for name in TRIO}
    assert build.find(["etcd", *TRIO], where) == {"etcd": etcd, **cached}
    del where["TESSERA_CACHE"]
    where["XDG_CACHE_HOME"] = str(tmp_path / "nowhere")
    assert build.find(["etcd", *TRIO], where) == {"etcd": etcd}


def test_a_kubelet_on_path_serves_its_machine_and_is_not_taken(tmp_path: Path) -> None:
    where = environ(tmp_path)
    program(tmp_path / "path" / "kubelet")
    assert build.find(["kubelet"], where) == {}
    cached = program(build.TOOLS["kubelet"].cached(where))
    assert build.find(["kubelet"], where) == {"kubelet": cached}
    given = program(tmp_path / "assets" / "kubelet")
    assert build.find(["kubelet"], where) == {"kubelet": given}


def test_the_cache_is_kept_by_version(tmp_path: Path) -> None:
    where = {"TESSERA_CACHE": str(tmp_path)}
    assert build.TOOLS["kubectl"].cached(where) == tmp_path / "kubernetes" / build.CONTROL_PLANE.version / "kubectl"
    assert build.TOOLS["etcd"].cached(where) == tmp_path / "etcd" / build.ETCD.version / "etcd"
    assert build.CONTROL_PLANE.version.startswith("v1.")


def test_without_go_it_says_what_is_missing_and_what_helps(tmp_path: Path) -> None:
    with pytest.raises(build.Missing, match=r"^etcd, kubectl: .*no Go to build them; install Go .*KUBEBUILDER_ASSETS$"):
        build.ensure(["etcd", "kubectl"], tell=silent, environ=environ(tmp_path))


def test_what_is_missing_is_built_once(tmp_path: Path) -> None:
    where = environ(tmp_path) | {"PATH": f"{tmp_path / 'path'}:/usr/bin:/bin"}
    go = program(tmp_path / "path" / "go", FAKE_GO)
    told: list[str] = []
    cached = build.TOOLS["etcd"].cached(where)
    for _ in range(2):
        assert build.ensure(["etcd"], tell=told.append, environ=where) == {"etcd": cached}
    (call,) = go.with_name("go.calls").read_text().splitlines()
    assert call.endswith(" go.etcd.io/etcd/server/v3")
    assert [text.partition(":")[0] for text in told] == [f"etcd {build.ETCD.version}"] * 2
    assert [path.name for path in cached.parent.iterdir()] == ["etcd"]


def test_a_build_that_fails_says_what_go_said_and_leaves_nothing(tmp_path: Path) -> None:
    where = environ(tmp_path) | {"PATH": f"{tmp_path / 'path'}:/usr/bin:/bin"}
    program(tmp_path / "path" / "go", FAILING_GO)
    with pytest.raises(build.BuildFailed, match="go: something is wrong"):
        build.ensure(["etcd"], tell=silent, environ=where)
    assert list(build.TOOLS["etcd"].cached(where).parent.iterdir()) == []
