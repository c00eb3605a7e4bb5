"""Files that a person hands over: snapshots, descriptions, manifests, plans, kubeconfigs and journals.

Values, or an error of the reader's own kind; and what was read is within the limits, so that it can be encoded again.
"""

from __future__ import annotations

import contextlib
import json
import sys

import atheris

with atheris.instrument_imports(include=["tessera.files", "tessera.inspect.snapshots", "tessera.wire.journal"]):
    from tessera.files.documents import DocumentError, read_documents
    from tessera.inspect.description import read_description
    from tessera.inspect.journal_source import LineDecoder
    from tessera.inspect.manifests import read_claim_manifests, read_manifests
    from tessera.inspect.snapshots import decode_snapshot
    from tessera.inspect.state import InspectionError, Setup
    from tessera.maintenance.defrag import read_plan


def one_input(data: bytes) -> None:
    with contextlib.suppress(DocumentError):
        json.dumps(read_documents(data))
    text = data.decode("utf-8", "replace")
    for read in (
        lambda: decode_snapshot(data, file="f"),
        lambda: read_description(text, file="f", now=0.0, setup=Setup()),
        lambda: read_manifests(text, file="f", namespace="n", count=None),
        lambda: read_claim_manifests(text, file="f", namespace="n"),
        lambda: read_plan(text, file="f"),
        lambda: read_journal(data),
    ):
        with contextlib.suppress(InspectionError):
            read()


def read_journal(data: bytes) -> None:
    decoder = LineDecoder("f", [])
    for line in data.split(b"\n"):
        decoder.decode(line)
    decoder.end()


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
