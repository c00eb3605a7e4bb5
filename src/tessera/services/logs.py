"""Logging of the services: structured events on stderr, as JSON lines or as coloured text on a terminal.

Log records of libraries have the same form. The process configures logging once; modules only get a logger, and
`deferral` where lines are many. A thread writes the lines. structlog is imported late, so that `--help` stays quick.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, TextIO, cast

from tessera.services.log_writer import LogWriter
from tessera.services.settings_table import Group, Setting, Sources, rows_of, setting
from tessera.services.value_types import ValueType, choice, parse_whole

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

DEBUG_VERBOSITY = 5
"""HAMi's chart runs at 4, which must not mean debug"""


class LogFormat(Enum):
    JSON = "json"
    CONSOLE = "console"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        """The level of the standard library."""
        return {"debug": 10, "info": 20, "warning": 30, "error": 40}[self.value]


@dataclass(frozen=True, slots=True)
class LogOptions:
    # fmt: off
    format: LogFormat | None = setting(Group.OPERATION, "log-format", choice(LogFormat), None,
        "Form of log lines.", default_text="console on a terminal, json elsewhere")
    level: LogLevel = setting(Group.OPERATION, "log-level", choice(LogLevel), LogLevel.INFO,
        "Least important level that is logged.")
    # fmt: on


VERBOSITY = Setting(
    "v",
    ValueType("NUMBER", lambda text: parse_whole(text.removeprefix("="))),
    None,
    Group.OPERATION,
    "HAMi's verbosity: 5 and above is --log-level debug.",
    short="v",
)
LOG_SETTINGS = (*rows_of(LogOptions), VERBOSITY)


def read_log_options(sources: Sources) -> LogOptions:
    options = sources.load(LogOptions)
    is_verbose = (sources.read(VERBOSITY) or 0) >= DEBUG_VERBOSITY
    return replace(options, level=LogLevel.DEBUG) if is_verbose and "log-level" not in sources else options


def configure_logs(options: LogOptions, stream: TextIO | None = None) -> LogWriter:
    """Send the log of this process to `stream`, by default stderr. Close the writer before the process ends."""
    import structlog

    stream = stream or sys.stderr
    chosen = options.format or (LogFormat.CONSOLE if stream.isatty() else LogFormat.JSON)
    writer = LogWriter(stream, report_loss=_report_loss)

    def add_time(_logger: WrappedLogger, _level: str, event: EventDict) -> EventDict:
        event["timestamp"] = datetime.fromtimestamp(writer.now() / 1e9, UTC).isoformat().replace("+00:00", "Z")
        return event

    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        add_time,
    ]
    renderers = _renderers(chosen, colors=stream.isatty())
    structlog.configure(
        processors=[*common, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(options.level.number),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", writer)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(writer)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    # At info, libraries log too much; their debug output comes with ours.
    level = options.level.number if options.level is not LogLevel.INFO else logging.WARNING
    logging.basicConfig(handlers=[handler], level=level, force=True)
    return writer


Defer = Callable[..., None]
"""`defer(call, *arguments)` makes a call that logs, now or later, but in its turn and with the time of now"""


def deferral() -> Defer:
    """Leaves such calls to the thread that writes the log of this process; without one they are made at once."""
    for handler in logging.getLogger().handlers:
        stream = getattr(handler, "stream", None)
        if isinstance(stream, LogWriter):
            return stream.defer
    return lambda call, *arguments: call(*arguments)


def _report_loss(lines: int) -> None:
    import structlog

    structlog.get_logger(__name__).warning("log lines are lost: the log did not take them", lines=lines)


def _json(event: Mapping[str, object], *, default: Callable[[object], object]) -> str:
    """A tenth of the time that the standard library takes, for almost all lines."""
    import msgspec

    try:
        return msgspec.json.encode(event, enc_hook=default).decode()
    except (TypeError, ValueError):  # Texts that are not Unicode, keys that are no texts.
        return json.dumps(event, ensure_ascii=False, default=default)


def _renderers(chosen: LogFormat, *, colors: bool) -> list[Processor]:
    import structlog

    if chosen is LogFormat.CONSOLE:
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(serializer=_json),
    ]
