"""JSON between kube-scheduler and its extender: what /filter, /bind and /preempt receive and answer.

The large parts of a filter request (names or whole nodes) stay raw: callers compare, echo or decode them on demand.
Keys are capitalised; other spellings are accepted on a slower path, as Go does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from tessera.wire.errors import WireError
from tessera.wire.golang import fold
from tessera.wire.objects import Node, Pod

EMPTY_BODY = "Please send a request body"
MISSING_POD = "extender args missing pod"


class FilterArgs(msgspec.Struct, frozen=True):
    """A filter request. The raw parts keep the request's body alive as long as they live."""

    pod: Pod
    node_names: Raw | None
    """the JSON list of candidate names; None where the request has none"""
    nodes: Raw | None
    """the JSON NodeList; given by callers that simulate, such as an autoscaler"""


@dataclass(frozen=True, slots=True)
class GivenNode:
    """A node of a request, decoded and raw; the raw form is echoed."""

    node: Node
    raw: Raw


class BindingArgs(msgspec.Struct, frozen=True, gc=False):
    """A bind request. All fields are set."""

    pod_name: str = msgspec.field(name="PodName", default="")
    pod_namespace: str = msgspec.field(name="PodNamespace", default="")
    pod_uid: str = msgspec.field(name="PodUID", default="")
    node: str = msgspec.field(name="Node", default="")


class VictimUid(msgspec.Struct, frozen=True, gc=False):
    uid: str = msgspec.field(name="UID", default="")


class NodeVictims(msgspec.Struct, frozen=True, gc=False):
    """The pods that kube-scheduler would delete on one node."""

    pods: tuple[VictimUid, ...] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)

    @property
    def uids(self) -> list[str]:
        return [pod.uid for pod in self.pods or ()]

    def with_more(self, uids: Iterable[str]) -> NodeVictims:
        """The same with further pods; all of them sorted, so that equal answers are equal."""
        return NodeVictims(tuple(map(VictimUid, sorted({*self.uids, *uids}))), self.pdb_violations)


class _VictimMetadata(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _VictimPod(msgspec.Struct, frozen=True, gc=False):
    metadata: _VictimMetadata = _VictimMetadata()


class _WholeVictims(msgspec.Struct, frozen=True, gc=False):
    pods: tuple[_VictimPod, ...] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True):
    """A preempt request: on which nodes kube-scheduler would delete which pods."""

    pod: Pod
    victims: dict[str, NodeVictims]
    """by node"""


class _PreemptionArgs(msgspec.Struct, gc=False):
    pod: Pod | None = msgspec.field(name="Pod", default=None)
    whole: dict[str, _WholeVictims] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta: dict[str, NodeVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class _FilterArgs(msgspec.Struct, gc=False):
    pod: Pod | None = msgspec.field(name="Pod", default=None)
    nodes: Raw = msgspec.field(name="Nodes", default=Raw())
    node_names: Raw = msgspec.field(name="NodeNames", default=Raw())


class _NodeList(msgspec.Struct, gc=False):
    items: list[Raw] | None = None


class _FilterResult(msgspec.Struct, gc=False):
    nodes: Any = msgspec.field(name="Nodes")
    node_names: Any = msgspec.field(name="NodeNames")
    failed: Mapping[str, str] | None = msgspec.field(name="FailedNodes")
    unresolvable: Mapping[str, str] | None = msgspec.field(name="FailedAndUnresolvableNodes")
    error: str = msgspec.field(name="Error")


_filter_args = msgspec.json.Decoder(_FilterArgs)
_binding_args = msgspec.json.Decoder(BindingArgs)
_preemption_args = msgspec.json.Decoder(_PreemptionArgs)
_by_key = msgspec.json.Decoder(dict[str, Raw])
_name_list = msgspec.json.Decoder(list[str])
_node_list = msgspec.json.Decoder(_NodeList)
_node = msgspec.json.Decoder(Node)
_encoder = msgspec.json.Encoder()
_NULL = Raw(b"null")


def decode_filter_args(body: bytes) -> FilterArgs:
    """A filter request; raises `WireError` with the text for the response's `Error`."""
    args = _decode(_filter_args, body, "ExtenderArgs")
    if args.pod is None:
        args = _decode(_filter_args, _recased(body, _FilterArgs), "ExtenderArgs")
    if args.pod is None:
        raise WireError(MISSING_POD)
    return FilterArgs(args.pod, _present(args.node_names), _present(args.nodes))


def decode_node_names(raw: bytes | Raw) -> list[str]:
    return _decode(_name_list, raw, "NodeNames")


def decode_nodes(raw: Raw) -> list[GivenNode]:
    items = _decode(_node_list, raw, "NodeList").items or []
    return [GivenNode(_decode(_node, item, "Node"), item) for item in items]


def decode_binding_args(body: bytes) -> BindingArgs:
    args = _decode(_binding_args, body, "ExtenderBindingArgs")
    if _missing(args):
        args = _decode(_binding_args, _recased(body, BindingArgs), "ExtenderBindingArgs")
    missing = _missing(args)
    if missing:
        raise WireError(f"extender binding args missing {', '.join(missing)}")
    return args


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """Victims come as uids where the extender is `nodeCacheCapable`, as whole pods otherwise."""
    args = _decode(_preemption_args, body, "ExtenderPreemptionArgs")
    if args.pod is None:
        args = _decode(_preemption_args, _recased(body, _PreemptionArgs), "ExtenderPreemptionArgs")
    if args.pod is None:
        raise WireError(MISSING_POD)
    victims = dict(args.meta or {})
    for name, found in (args.whole or {}).items():
        uids = tuple(VictimUid(pod.metadata.uid) for pod in found.pods or ())
        victims.setdefault(name, NodeVictims(uids, found.pdb_violations))
    return PreemptionArgs(args.pod, victims)


def encode_preemption_result(victims: Mapping[str, NodeVictims]) -> bytes:
    """The nodes on which a preemption helps, each with the pods that have to leave."""
    return _encoder.encode({"NodeNameToMetaVictims": victims})


def encode_filter_result(
    *,
    node_names: Raw | Sequence[str] | None = None,
    nodes: Sequence[Raw] | None = None,
    failed: Mapping[str, str] | None = None,
    unresolvable: Mapping[str, str] | None = None,
    error: str = "",
) -> bytes:
    """The response to a filter request: nodes that fit, reasons for those that do not, or an error."""
    node_list = None if nodes is None else {"metadata": {}, "items": nodes}
    return _encoder.encode(_FilterResult(node_list, node_names, failed, unresolvable, error))


def encode_binding_result(error: str = "") -> bytes:
    return _encoder.encode({"Error": error})


T = TypeVar("T")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes | Raw, what: str) -> T:
    if not data:
        raise WireError(EMPTY_BODY)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise WireError(f"not valid {what}: {error}") from error


def _present(raw: Raw) -> Raw | None:
    return raw if raw and raw != _NULL else None


def _missing(args: BindingArgs) -> list[str]:
    if args.pod_name and args.pod_namespace and args.pod_uid and args.node:
        return []
    given = {"PodName": args.pod_name, "PodNamespace": args.pod_namespace, "PodUID": args.pod_uid, "Node": args.node}
    return [key for key, value in given.items() if not value]


def _recased(body: bytes, kind: type[msgspec.Struct]) -> bytes:
    """The same object with the top-level keys spelt as `kind` wants them."""
    return _encoder.encode(fold(_decode(_by_key, body, "request"), kind))
