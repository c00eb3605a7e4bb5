"""Filter and bind requests against arbitrary bytes: a value or a WireError, and what is echoed stays JSON."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tessera.wire"]):
    from tessera.wire.errors import WireError
    from tessera.wire.extender import (
        decode_binding_args,
        decode_filter_args,
        decode_node_names,
        decode_nodes,
        encode_binding_result,
        encode_filter_result,
    )
    from tessera.wire.objects import decode_object


def filtering(data: bytes) -> None:
    args = decode_filter_args(data)
    if args.node_names is not None:
        names = decode_node_names(args.node_names)
        answer = encode_filter_result(node_names=args.node_names, failed=dict.fromkeys(names, args.pod.metadata.name))
        assert decode_object(answer, dict)["NodeNames"] == names
    if args.nodes is not None:
        for given in decode_nodes(args.nodes):
            encode_filter_result(nodes=[given.raw], failed={given.node.name: ""})


def binding(data: bytes) -> None:
    args = decode_binding_args(data)
    assert all((args.pod_name, args.pod_namespace, args.pod_uid, args.node))


def one_input(data: bytes) -> None:
    for decode in (filtering, binding):
        try:
            decode(data)
        except WireError as error:
            encode_filter_result(error=str(error))
            encode_binding_result(str(error))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
