"""Lists and watches of the apiserver against arbitrary bytes: objects, an unreadable one, or an error of `kube`."""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["tessera.kube", "tessera.wire"]):
    from tessera.kube.decoder import Decoders, UnreadableObject, api_error
    from tessera.kube.errors import KubeError
    from tessera.kube.transport import LineSplitter
    from tessera.wire.objects import Node, Pod
    from tests.fuzz.transport import pieces

DECODERS = Decoders()


def one_input(data: bytes) -> None:
    unreadable: list[UnreadableObject] = []
    splitter = LineSplitter()
    for piece in pieces(data):
        for line in splitter.feed(piece):
            for kind in (Pod, Node):
                with contextlib.suppress(KubeError):
                    DECODERS.decode_event(line, kind, unreadable.append)
    with contextlib.suppress(KubeError):
        DECODERS.decode_list(data, Pod, unreadable.append)
    assert all(str(each) for each in unreadable)
    api_error(500, data, {"retry-after": data[:16].decode("latin-1")})


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
