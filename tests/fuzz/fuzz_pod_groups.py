"""Gangs of pods with any labels and annotations, and any PodGroup: a size that can be meant, or what to write instead.

The input is a pod or a PodGroup as JSON; otherwise its lines are the values of the keys that are read.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["tessera.wire"]):
    from tessera.wire.errors import WireError
    from tessera.wire.objects import Metadata, Pod, decode_object
    from tessera.wire.pod_groups import (
        GROUP_KEYS,
        LONGEST_LABEL,
        LONGEST_NAME,
        MAX_MEMBERS,
        BadPodGroup,
        PodGroup,
        PodGroupObject,
        read_pod_group,
    )

KEYS = sorted(GROUP_KEYS)
LONGEST_TEXT = 1_200
"""characters of a refusal: what a tenant wrote is quoted in part, at most six characters for one"""


def judge(pod: Pod) -> None:
    found = read_pod_group(pod)
    if isinstance(found, BadPodGroup):
        assert 0 < len(found.text) <= LONGEST_TEXT, found
    elif isinstance(found, PodGroup):
        assert 0 < len(found.name) <= LONGEST_NAME
        assert len(found.topology) <= LONGEST_LABEL
        assert found.is_sized or found.where is not None, "a size is known, or where to look for it"
        assert not found.is_sized or 1 <= found.minimum <= found.size <= MAX_MEMBERS


def one_input(data: bytes) -> None:
    try:
        judge(decode_object(data, Pod))
    except WireError:
        values = data.decode("utf-8", "replace").split("\n")
        # The first line says which keys are labels: the others are annotations, which win.
        labels: dict[str, str] = {}
        annotations: dict[str, str] = {}
        for number, (key, value) in enumerate(zip(KEYS, values[1:], strict=False)):
            (labels if values[0][number : number + 1] == "l" else annotations)[key] = value
        judge(Pod(Metadata(labels=labels, annotations=annotations)))
    try:
        minimum = decode_object(data, PodGroupObject).minimum
    except WireError:
        return
    assert minimum is None or 1 <= minimum <= MAX_MEMBERS


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
