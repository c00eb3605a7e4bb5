"""`tessera device-plugin`, the agent of a GPU node, and `tessera mps-daemons`: MPS control daemons that outlive it.

Flags are only collected here; `tessera.node.configuration` says what they mean.
"""

from __future__ import annotations

import os

import click

from tessera import __version__
from tessera.cli.grouped import GroupedCommand, configured, flags_of_params, read_file, run_service, wants_print
from tessera.node.settings import TABLE, Configuration, Paths
from tessera.services.common_settings import LOG_SETTINGS, read_log_options
from tessera.services.settings_table import Group, Sources, given_in, row_of

SERVICE = "tessera.node.process"
"""module whose `run(configuration, reload)` runs until it is told to stop and returns the exit code"""

DEGRADED = 2
"""exit code of --print-config where the agent would serve, but not with what the files should say"""


def run(**params: str | tuple[str, ...] | None) -> None:
    """Read the configuration, and print it or run the agent with it."""
    from tessera.node.configuration import build_configuration, changes, print_configuration

    flags = flags_of_params(TABLE, params)

    def read() -> Configuration:
        return build_configuration(flags, os.environ, read_file)

    configuration = configured(read)
    if wants_print(flags):
        click.echo(print_configuration(configuration), nl=False)
        for text in (*configuration.faults, *configuration.warnings):
            click.echo(f"Warning: {text}", err=True)
        click.get_current_context().exit(DEGRADED if configuration.faults else 0)
    ignored = given_in(Group.IGNORED, TABLE, flags)
    run_service(SERVICE, configuration, read, flags=flags, settings=changes(configuration), ignored=ignored)


command = GroupedCommand(
    "device-plugin",
    callback=run,
    table=TABLE,
    help="""Serve the GPUs of one node: find and register them, and give every container exactly its slice.

    Understands the flags, variables and files of HAMi's device plugin as well: its DaemonSet starts with only image and
    command changed. How cards are shared: the node's entry in config.json wins over section nvidia of
    device-config.yaml, which wins over flags. Everything else: a flag wins over its variable (in brackets), which wins
    over section flags of device-config.yaml. Files are read again when they change and on SIGHUP; while config.json is
    broken its last good text holds, and a device-config.yaml that became bad changes nothing.
    """,
    epilog="""\b
    Environment: KUBECONFIG, HOME, DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS, and those in brackets.

    \b
    Examples:
      tessera device-plugin --config-file /device-config.yaml
          in a DaemonSet that sets NODE_NAME
      tessera device-plugin --config-file=/device-config.yaml --mig-strategy=none --disable-core-limit=false -v=4
          as HAMi's chart starts its plugin
      tessera device-plugin --node-name n1 --simulate cards.yaml --plugin-dir ./kubelet --state-dir ./state
          cards that a file describes, on a machine without any
      tessera device-plugin --config-file /device-config.yaml --dra
          cards for ResourceClaims, and none for pods that ask for nvidia.com/gpu
      tessera device-plugin --config-file /device-config.yaml --dra --dra-allocator tessera
          cards for both, which `tessera scheduler --dra` allocates
      tessera device-plugin --node-name n1 --config-file device-config.yaml --print-config
          check a configuration without starting anything
    """,
)
click.version_option(__version__, prog_name="tessera device-plugin", message="%(prog)s %(version)s")(command)


MPS_SERVICE = "tessera.node.modes.mps.launcher"
"""module whose `run(root, environ)` runs until it is told to stop and returns the exit code"""

MPS_ROOT = row_of(Paths, "mps")
MPS_TABLE = (MPS_ROOT, *LOG_SETTINGS)


def run_mps_daemons(**params: str | tuple[str, ...] | None) -> None:
    """Start daemons as the agent asks for them."""
    flags = flags_of_params(MPS_TABLE, params)

    def read() -> Sources:
        sources = Sources(flags, os.environ)
        sources.read(MPS_ROOT)
        read_log_options(sources)
        sources.check()
        return sources

    root = configured(read).read(MPS_ROOT)
    run_service(MPS_SERVICE, root, dict(os.environ), flags=flags, folder=str(root))


mps_daemons = GroupedCommand(
    "mps-daemons",
    callback=run_mps_daemons,
    table=MPS_TABLE,
    help="""Start MPS control daemons for the agent of this node, so that they outlive its container.

    Goes with `tessera device-plugin --external-mps-daemons`, which decides when a daemon is needed and when it ends.
    Both need the host's process ids and the same directory of pipes. When this process ends, the daemons run on,
    unless the container runtime ends them with its container.
    """,
    epilog="""\b
    Examples:
      tessera mps-daemons
          in a DaemonSet with hostPID and updateStrategy OnDelete
    """,
)
