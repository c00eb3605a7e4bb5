"""AdmissionReview against arbitrary bytes: a review or a WireError, and every review can be answered."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tessera.wire"]):
    from tessera.wire.admission import decode_review, encode_verdict, errored, patched
    from tessera.wire.errors import WireError
    from tessera.wire.objects import Pod, decode_object


def one_input(data: bytes) -> None:
    try:
        review = decode_review(data)
    except WireError as error:
        encode_verdict(errored(400, str(error)), None)
        return
    try:
        name = decode_object(bytes(review.object), Pod).metadata.name
    except WireError as error:
        encode_verdict(errored(400, str(error)), review)
        return
    patch = [{"op": "add", "path": "/metadata/name", "value": name}]
    answer = encode_verdict(patched(patch, warnings=[review.namespace]), review)
    assert decode_object(answer, dict)["response"]["uid"] == review.uid


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
