"""The whole webhook against arbitrary bodies: every one is answered, no pod is a fault, and a changed pod stays so."""

from __future__ import annotations

import sys

import atheris
import msgspec

with atheris.instrument_imports(include=["tessera.scheduler.admission", "tessera.vendors", "tessera.wire"]):
    from tessera.core.ledger import Ledger
    from tessera.scheduler.admission.pod_admission import AdmissionSettings, admit
    from tessera.scheduler.admission.webhook import review
    from tessera.vendors.base import Switches
    from tessera.vendors.registry import build_vendors
    from tessera.wire.admission import FAULT, Verdict

VENDORS = build_vendors(None, Switches(ascend=True, iluvatar=True))
SETTINGS = AdmissionSettings()
LEDGER = Ledger(VENDORS)


def one_input(data: bytes) -> None:
    decided: list[Verdict] = []
    review(
        data,
        "application/json",
        vendors=VENDORS,
        settings=SETTINGS,
        ledger=LEDGER,
        observe=lambda verdict, _review: decided.append(verdict),
    )
    assert [each.code for each in decided if each.code == FAULT] == []
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    admit(document, namespace="n", vendors=VENDORS, settings=SETTINGS, ledger=LEDGER)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
