"""The form of a response: plain JSON, a table, or metadata only, whichever the Accept header names first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tessera_lab.sandbox.api.errors import StatusError
from tessera_lab.sandbox.api.kinds import Json, ResourceKind
from tessera_lab.sandbox.api.lists import StoredPage
from tessera_lab.sandbox.api.store import ENCODE, Stored
from tessera_lab.sandbox.api.tables import partial, table

_PARTIAL = ("PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """One form of objects."""

    now: Callable[[], float]
    shape: str = ""
    """empty for plain JSON, else "Table" or "Partial" """
    include: str = "Metadata"

    def one(self, stored: Stored) -> bytes:
        if self.shape == "Table":
            metadata = {"resourceVersion": str(stored.version)}
            return ENCODE(table(stored.kind, [stored], now=self.now(), metadata=metadata, include=self.include))
        if self.shape == "Partial":
            return ENCODE(partial(stored, "PartialObjectMetadata"))
        return stored.whole

    def many(self, kind: ResourceKind, page: StoredPage) -> bytes:
        metadata: Json = {"resourceVersion": str(page.version)}
        if page.token:
            metadata["continue"] = page.token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
        if self.shape == "Table":
            return ENCODE(table(kind, page.items, now=self.now(), metadata=metadata, include=self.include))
        if self.shape == "Partial":
            items = [partial(each, "PartialObjectMetadata") for each in page.items]
            heading = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            return ENCODE(heading | {"items": items})
        heading = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        return ENCODE(heading)[:-1] + b',"items":[' + b",".join(each.bare for each in page.items) + b"]}"


def choose_form(accept: str, query: Mapping[str, str], now: Callable[[], float]) -> ResponseForm:
    """The first form in `accept` that this server knows."""
    for part in accept.split(",") if accept else ("*/*",):
        media, *rest = (piece.strip() for piece in part.split(";"))
        if media not in ("application/json", "application/*", "*/*"):
            continue
        parameters = dict(piece.split("=", 1) for piece in rest if "=" in piece)
        shape = parameters.get("as", "")
        if not shape:
            return ResponseForm(now)
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") in ("v1", "v1beta1"):
            if shape == "Table":
                return ResponseForm(now, "Table", query.get("includeObject", "Metadata"))
            if shape in _PARTIAL:
                return ResponseForm(now, "Partial")
    message = "only the following media types are accepted: application/json"
    raise StatusError(406, "NotAcceptable", message)
