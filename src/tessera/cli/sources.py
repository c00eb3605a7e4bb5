"""Options that all commands which inspect a cluster share: where the cluster comes from and how the answer is printed.

Exit codes are the same everywhere: 0 good news, 1 bad news, 2 no answer (wrong use, no access, unreadable file).
Heavy modules are imported only when a command runs.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tessera import __version__
from tessera.cli import NamedEpilog

if TYPE_CHECKING:
    from tessera.inspect.render.lines import StyledLine
    from tessera.inspect.state import ClusterState, Setup
    from tessera.kube.access import Access
    from tessera.kube.client import KubeClient

T = TypeVar("T")

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
USER_AGENT = f"tessera-cli/{__version__}"
"""tells a person's command from the scheduler in audit logs"""
COLUMNS = 100
"""assumed width of a terminal that does not tell its own"""
BAD_NEWS = 1
NO_ANSWER = 2
FORMS = ("text", "json", "yaml")

FILE = click.Path(exists=True, dir_okay=False, readable=True)


class CommandError(click.ClickException):
    """The command cannot answer; exit code 2."""

    exit_code = NO_ANSWER


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """Where the cluster comes from, as given on the command line."""

    kubeconfig: str | None
    context: str | None
    request_timeout: float
    device_config_file: str | None = None
    snapshot: str | None = None
    scheduler_flag: tuple[str, ...] = ()
    cluster_file: str | None = None

    @property
    def is_live(self) -> bool:
        return self.snapshot is None and self.cluster_file is None

    def override(self, setup: Setup) -> Setup:
        """The setup with what the command line says instead."""
        from msgspec import structs

        from tessera.inspect.installation import parse_scheduler_flags

        file, flags = self.device_config_file, parse_scheduler_flags(self.scheduler_flag)
        if file:
            setup = structs.replace(setup, device_config=read_input(file), device_config_from=file)
        if flags:
            setup = structs.replace(setup, flags={**(setup.flags or {}), **flags}, flags_from="the command line")
        return setup


def cluster_command(
    name: str,
    *,
    examples: Sequence[tuple[str, str]],
    codes: str,
    more: str = "",
    forms: Sequence[str] = FORMS,
    changes: bool = False,
    decides: bool = True,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Makes a command of a function. It gets the options of `ClusterSource` as the argument `source`, and `output`
    as one of `forms`, if there are any. One that `changes` a cluster takes no snapshot; one that does not look at what
    `decides` there takes no configuration."""

    def make(run: Callable[..., Any]) -> click.Command:
        epilog = help_epilog(examples, codes, more)
        made = click.command(name, cls=NamedEpilog, context_settings=CONTEXT, epilog=epilog)(run)
        if forms:
            choice = click.Choice(forms)
            made.params.append(click.Option(
                ["-o", "--output"], type=choice, default="text", show_default=True, help="How to print the answer."
            ))  # fmt: skip
        left_out = LIVE_ONLY if changes else () if decides else CONFIGURATION
        made.params += [option for option in _source_options() if option.name not in left_out]
        made.callback = lambda **given: run(source=_take_source(given), **given)
        return made

    return make


CONFIGURATION = ("device_config_file", "scheduler_flag")
LIVE_ONLY = ("snapshot", "scheduler_flag")


def _source_options() -> list[click.Option]:
    return [
        click.Option(["--kubeconfig"], metavar="FILE", help="Default: KUBECONFIG, in-cluster, ~/.kube/config."),
        click.Option(["--context"], metavar="NAME", help="Context in the kubeconfig."),
        click.Option(
            ["--request-timeout"], type=click.FloatRange(min=0.1), default=15.0, metavar="SECONDS", show_default=True,
            help="Limit for one request to the apiserver.",
        ),
        click.Option(
            ["--device-config-file"], type=FILE, metavar="FILE",
            help="Use this device-config.yaml instead of the cluster's ConfigMap or the chart's defaults.",
        ),
        click.Option(["--snapshot"], type=FILE, metavar="FILE", help="Read a `tessera snapshot` file, not a cluster."),
        click.Option(
            ["--scheduler-flag"], multiple=True, metavar="NAME=VALUE",
            help="Decide as if the scheduler had this flag; may be repeated.",
        ),
    ]  # fmt: skip


def _take_source(given: dict[str, Any]) -> ClusterSource:
    """Moves the options of the source out of those of the command."""
    source = ClusterSource(**{each.name: given.pop(each.name) for each in fields(ClusterSource) if each.name in given})
    if source.snapshot and (source.kubeconfig or source.context):
        raise click.UsageError("--snapshot replaces the cluster: leave out --kubeconfig and --context")
    return source


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs the work of a command. Every expected fault becomes one message and exit code 2."""
    import asyncio

    from tessera.inspect.state import InspectionError
    from tessera.kube.errors import KubeError

    _be_quiet()
    try:
        return asyncio.run(work())
    except InspectionError as error:
        raise CommandError(_printable_lines(str(error))) from error
    except KubeError as error:
        raise CommandError(f"cannot reach the cluster: {_printable_lines(str(error))}") from error
    except KeyboardInterrupt as error:
        raise click.exceptions.Exit(130) from error


def _be_quiet() -> None:
    """Keeps the engine's logs off standard output, which is for the answer. The answer covers what they would say."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


async def read_state(
    source: ClusterSource, *, namespace: str | None = None, for_preemption: bool = False
) -> ClusterState:
    """Reads the cluster, the snapshot or the description that the command line names. `namespace`: the one to make do
    with, if the user may not read all of a cluster; None if all is needed. `for_preemption`: of a cluster, disruption
    budgets and PriorityClasses too."""
    from tessera.inspect.collector import collect
    from tessera.inspect.description import read_description
    from tessera.inspect.snapshots import decode_snapshot, read_snapshot_file
    from tessera.inspect.state import Setup

    if source.cluster_file is not None:
        text = read_input(source.cluster_file)
        return read_description(text, file=source.cluster_file, now=time.time(), setup=source.override(Setup()))
    if source.snapshot is not None:
        with _file_errors(source.snapshot):
            data = read_snapshot_file(source.snapshot)
        state = decode_snapshot(data, file=source.snapshot)
        return replace(state, setup=source.override(state.setup))
    async with open_cluster(source) as (client, name):
        return await collect(
            client,
            source=name,
            now=time.time,
            override=source.override,
            namespace=namespace,
            for_preemption=for_preemption,
        )


def find_access(source: ClusterSource) -> Access:
    """How to reach the apiserver that the command line names."""
    from tessera.kube.access import load_access

    return load_access(kubeconfig=source.kubeconfig, context=source.context, environ=os.environ)


def namespace_of(source: ClusterSource, given: str) -> str:
    """The given namespace; else that of the kubeconfig's context, as in kubectl."""
    return given or (find_access(source).namespace if source.is_live else "default")


@asynccontextmanager
async def open_cluster(source: ClusterSource, access: Access | None = None) -> AsyncIterator[tuple[KubeClient, str]]:
    """A client of the cluster that the command line names, or of another `access`, and its name for people."""
    from tessera.kube.client import KubeClient

    access = access or find_access(source)
    async with KubeClient(access, timeout=source.request_timeout, user_agent=USER_AGENT) as client:
        yield client, f"cluster {access.server}"


def read_input(file: str) -> str:
    """The text of a file, or of standard input for `-`. Raises InspectionError."""
    from tessera.files.reader import read_file, read_stdin

    with _file_errors(file):
        return (read_stdin() if file == "-" else read_file(file)).decode()


def is_bundle(file: str) -> bool:
    """Whether a file is compressed, as those of `tessera snapshot --with-journal` are. Raises InspectionError."""
    from tessera.files.reader import is_packed

    with _file_errors(file):
        return is_packed(file)


@contextmanager
def _file_errors(file: str) -> Iterator[None]:
    from tessera.inspect.state import InspectionError

    try:
        yield
    except OSError as error:
        raise InspectionError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise InspectionError(f"cannot read {file}: it is not text in UTF-8") from error


def write_output(file: str, text: str) -> None:
    """Raises InspectionError."""
    from tessera.inspect.state import InspectionError

    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InspectionError(f"cannot write {file}: {error.strerror or error}") from error


def print_lines(lines: Iterable[StyledLine], *, err: bool = False) -> None:
    """In colour on a terminal, plain elsewhere. `err`: on standard error."""
    from tessera.inspect.render.lines import Style, printable

    looks: dict[Style, dict[str, Any]] = {
        Style.HEAD: {"bold": True},
        Style.GOOD: {"fg": "green"},
        Style.WARN: {"fg": "yellow"},
        Style.BAD: {"fg": "red"},
        Style.DIM: {"dim": True},
    }
    colour = False if "NO_COLOR" in os.environ else None
    width, plain = terminal_width(), ascii_only()
    for line in lines:
        for text in _wrapped(printable(line.text), width):
            look = looks.get(line.style)
            text = as_ascii(text) if plain else text
            click.echo(click.style(text, **look) if text and look else text, color=colour, err=err)


def _printable_lines(text: str) -> str:
    from tessera.inspect.render.lines import printable

    return "\n".join(map(printable, text.split("\n")))


def _wrapped(text: str, width: int | None) -> list[str]:
    """Wraps the text to the terminal; continuation lines are indented."""
    if width is None or len(text) <= width:
        return [text]
    indent = " " * (len(text) - len(text.lstrip()))
    words = textwrap.wrap(
        text.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False
    )
    return words or [text]


def print_answer(kind: str, state: ClusterState, content: Any, *, output: str, lines: Iterable[StyledLine]) -> None:
    """The answer as text, with what it is based on, or as a document."""
    from tessera.inspect.render.explanation import source_lines

    if output == "text":
        print_lines(lines)
        print_lines(source_lines(state))
    else:
        print_document(kind, state, content, output)


def print_document(kind: str, state: ClusterState | None, content: Any, form: str) -> None:
    from tessera.inspect.render.documents import encode_document, make_document

    click.echo(encode_document(make_document(kind, state, content), form, ascii_only=ascii_only()), nl=False)


def print_stream_document(kind: str, state: ClusterState, content: Any, form: str) -> None:
    """One of several documents about a cluster that is watched."""
    from tessera.inspect.render.documents import encode_stream_document, make_document

    document = make_document(kind, state, content)
    click.echo(encode_stream_document(document, form, taken=state.taken, ascii_only=ascii_only()), nl=False)


def terminal_width() -> int | None:
    """Columns of the terminal; None if the output goes elsewhere, so that nothing is cut."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns if sys.stdout.isatty() else None


def ascii_only() -> bool:
    """Whether the output shows ASCII only: its encoding has no other characters, or the user's locale is C."""
    try:
        "█░".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    # In the C locale Python writes UTF-8 all the same, and then says LC_CTYPE=C.UTF-8 itself. An unset locale, as in
    # most containers, says nothing about the terminal.
    everything, kind, default = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    chosen = everything or (default if kind in ("", "C.UTF-8") else kind)
    return chosen in ("C", "POSIX")


def as_ascii(text: str) -> str:
    """The text for output that shows ASCII only."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


_ASCII = str.maketrans({"█": "#", "░": ".", "·": ".", "…": "...", "±": "+-"})
"""what Tessera itself prints"""


def exit_with(good: bool) -> None:
    """Exits with 0, or with 1 for bad news."""
    click.get_current_context().exit(0 if good else BAD_NEWS)


def help_epilog(lines: Sequence[tuple[str, str]], codes: str, more: str = "") -> str:
    """The epilog of a command's help: examples, exit codes, and `more` as it is."""
    shown = "\n".join(f"  {command}\n      {what}" for command, what in lines)
    rest = f"\n\n\b\n{textwrap.dedent(more).strip()}" if more else ""
    return f"\b\nExamples:\n{shown}\n\n\b\nExit codes:\n{codes}{rest}"
