"""`tessera scheduler`: webhook, extender and registration beside a stock kube-scheduler.

Flags are only collected here; `tessera.scheduler.configuration` says what they mean.
"""

from __future__ import annotations

import os
import socket

import click

from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, read_file, run_service, wants_print
from tessera.scheduler.settings import TABLE, Settings
from tessera.services.settings_table import Group, given_in

SERVICE, WITH_DASHBOARD = "tessera.scheduler.process", "tessera.inspect.dashboard.scheduler_page"
"""modules whose `run(settings, reload)` runs until it is told to stop and returns the exit code"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration, and print it or run the service with it."""
    from tessera.scheduler.configuration import build_settings, changes, print_settings

    flags = flags_of_params(TABLE, params)

    def read() -> Settings:
        return build_settings(flags, {"HOSTNAME": socket.gethostname(), **os.environ}, read_file)

    settings = configured(read)
    if wants_print(flags):
        click.echo(print_settings(settings), nl=False)
        return
    run_service(
        SERVICE if settings.listeners.dashboard is None else WITH_DASHBOARD,
        settings,
        read,
        flags=flags,
        settings=changes(settings),
        overriding=given_in(Group.OVERRIDES, TABLE, flags),
        ignored=given_in(Group.IGNORED, TABLE, flags),
    )


command = GroupedCommand(
    "scheduler",
    callback=run,
    table=TABLE,
    help="""Place device pods: the webhook, the extender of a stock kube-scheduler, and the ledger between them.

    Understands the flags of HAMi's scheduler from v2.4.0 to v2.10 as well: such a Deployment starts with only its image
    changed. A flag wins over its variable (in brackets), which wins over the default; switches are written --flag,
    --flag=true or --flag=false, durations 90s, 5m or 1h30m, addresses HOST:PORT or :PORT.
    """,
    epilog="""\b
    Environment: KUBECONFIG, HOME, POD_NAME, POD_NAMESPACE, HOSTNAME, and those in brackets.

    \b
    Examples:
      tessera scheduler --kubeconfig ~/.kube/config
          on a workstation: filter and bind on 127.0.0.1:8080, no webhook
      tessera scheduler --device-config-file /device-config.yaml
          in a cluster: webhook on :9443 with certificates of its own
      tessera scheduler --http_bind=0.0.0.0:443 --cert_file=/tls/tls.crt --key_file=/tls/tls.key -v=4
          as HAMi's chart starts its scheduler
      tessera scheduler --device-config-file /device-config.yaml --dra
          pods with ResourceClaims too, on nodes whose agents run with --dra --dra-allocator=tessera
      tessera scheduler --device-config-file device-config.yaml --print-config
          check a configuration without starting anything
    """,
)
