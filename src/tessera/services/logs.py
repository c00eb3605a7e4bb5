"""Logging of the services: structured events on stderr, as JSON lines or as coloured text on a terminal.

Log records of libraries have the same form. The process configures logging once; modules only get a logger.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from enum import Enum
from typing import TextIO

import structlog
from structlog.typing import Processor


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
    format: LogFormat | None = None
    """None = console on a terminal, JSON elsewhere"""
    level: LogLevel = LogLevel.INFO


def configure_logs(options: LogOptions, stream: TextIO | None = None) -> None:
    """Send the log of this process to `stream`, by default stderr."""
    stream = stream or sys.stderr
    chosen = options.format or (LogFormat.CONSOLE if stream.isatty() else LogFormat.JSON)
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderers = _renderers(chosen, colors=stream.isatty())
    structlog.configure(
        processors=[*common, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(options.level.number),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    # At info, libraries log too much; their debug output comes with ours.
    level = options.level.number if options.level is not LogLevel.INFO else logging.WARNING
    logging.basicConfig(handlers=[handler], level=level, force=True)


def _renderers(chosen: LogFormat, *, colors: bool) -> list[Processor]:
    if chosen is LogFormat.CONSOLE:
        return [structlog.dev.ConsoleRenderer(colors=colors)]
    return [
        structlog.processors.format_exc_info,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(ensure_ascii=False),
    ]
