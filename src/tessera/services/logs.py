"""Logging of the services: structured events on stderr, as JSON lines for machines or coloured text on a terminal.

Records of libraries that use the standard library come out in the same form. Called once, by the process; modules only
take a logger.
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
        """As the standard library counts."""
        return {"debug": 10, "info": 20, "warning": 30, "error": 40}[self.value]


@dataclass(frozen=True, slots=True)
class LogOptions:
    format: LogFormat | None = None
    """None = console on a terminal, JSON elsewhere"""
    level: LogLevel = LogLevel.INFO


def configure_logs(options: LogOptions, stream: TextIO | None = None) -> None:
    """Send what this process logs to `stream`, stderr by default."""
    stream = stream or sys.stderr
    chosen = options.format or (LogFormat.CONSOLE if stream.isatty() else LogFormat.JSON)
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = _renderers(chosen, colors=stream.isatty())
    structlog.configure(
        processors=[*before, *last],
        wrapper_class=structlog.make_filtering_bound_logger(options.level.number),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    # Libraries talk at info about what nobody asked; their debug output comes with ours.
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
