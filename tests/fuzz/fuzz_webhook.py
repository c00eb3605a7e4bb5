"""The whole webhook against arbitrary bodies: every one is answered, no pod is a fault, and a changed pod stays so."""

from __future__ import annotations

import sys

import atheris
import msgspec

with atheris.instrument_imports(include=["tessera.scheduler.admission", "tessera.vendors", "tessera.wire"]):
    from tessera.core.ledger.ledger import Ledger
    from tessera.scheduler.admission.pod_admission import admit
    from tessera.scheduler.admission.webhook import Webhook
    from tessera.scheduler.observer import SchedulerObserver
    from tessera.scheduler.settings import Settings
    from tessera.vendors.base import Switches
    from tessera.vendors.registry import build_vendors
    from tessera.wire.admission import FAULT

VENDORS = build_vendors(None, Switches(ascend=True, iluvatar=True))
SETTINGS = Settings()
LEDGER = Ledger(VENDORS)
WEBHOOK = Webhook(VENDORS, SETTINGS, LEDGER, observer=SchedulerObserver())


def one_input(data: bytes) -> None:
    answer = WEBHOOK.answer(data, "application/json")
    assert isinstance(answer, bytes)
    assert msgspec.json.decode(answer)["response"]["status"]["code"] != FAULT
    try:
        document = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    admit(document, namespace="n", vendors=VENDORS, settings=SETTINGS, ledger=LEDGER)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
