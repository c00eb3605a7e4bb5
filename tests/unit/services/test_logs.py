from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tessera.services.logs import LogFormat, LogLevel, LogOptions, configure_logs, deferral


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def written(options: LogOptions, stream: io.StringIO | None = None) -> str:
    """What some lines of both kinds come out as."""
    stream = stream or io.StringIO()
    writer = configure_logs(options, stream)
    log = structlog.get_logger("tests")
    log.debug("fine")
    log.info("placed", pod="a/b", node="n1", text="ü")
    try:
        raise OSError("gone")
    except OSError:
        log.exception("failed")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("from %s", "elsewhere")
    writer.close()
    return stream.getvalue()


def test_events_are_json_lines_away_from_a_terminal() -> None:
    lines = [json.loads(line) for line in written(LogOptions()).splitlines()]
    placed, failed, foreign = lines
    assert placed.pop("timestamp").endswith("Z")
    assert placed == {"message": "placed", "level": "info", "pod": "a/b", "node": "n1", "text": "ü"}
    assert "OSError: gone" in failed["exception"]
    assert (foreign["message"], foreign["level"], foreign["logger"]) == ("from elsewhere", "warning", "library")


def test_on_a_terminal_they_are_text() -> None:
    text = written(LogOptions(), Terminal())
    assert "placed" in text
    assert not text.startswith("{")


@pytest.mark.parametrize("format", list(LogFormat))
def test_the_format_can_be_chosen(format: LogFormat) -> None:
    for stream in (io.StringIO(), Terminal()):
        text = written(LogOptions(format=format), stream)
        assert text.startswith("{") is (format is LogFormat.JSON)


@pytest.mark.parametrize(
    ("level", "messages"),
    [
        (LogLevel.DEBUG, ["fine", "placed", "failed", "chatter", "from elsewhere"]),
        (LogLevel.INFO, ["placed", "failed", "from elsewhere"]),
        (LogLevel.WARNING, ["failed", "from elsewhere"]),
        (LogLevel.ERROR, ["failed"]),
    ],
)
def test_less_important_events_are_left_out(level: LogLevel, messages: list[str]) -> None:
    lines = written(LogOptions(level=level)).splitlines()
    assert [json.loads(line)["message"] for line in lines] == messages


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    writer = configure_logs(LogOptions())
    structlog.get_logger().info("hello")
    writer.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["message"] == "hello"


@pytest.mark.parametrize("format", list(LogFormat))
def test_a_deferred_line_has_the_bytes_that_structlog_writes_at_once(
    format: LogFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_123_456_000)
    stream, stock = io.StringIO(), io.StringIO()
    writer = configure_logs(LogOptions(format=format), stream)
    values = {"pod": 'team/"ü"\x7f\n', "node": "n1", "score": 0.125, "refusals": 3, "reason": None}
    log, defer = structlog.get_logger("tests"), deferral()
    defer(lambda: log.info("pod placed", **values))
    writer.close()
    renderers = structlog.get_config()["processors"][3:]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            lambda _logger, _level, event: {**event, "timestamp": "2023-11-14T22:13:20.123456Z"},
            *renderers,
        ],
        logger_factory=structlog.WriteLoggerFactory(file=stock),
    )
    structlog.get_logger("others").info("pod placed", **values)
    assert stream.getvalue() == stock.getvalue() != ""


def test_without_a_writer_a_deferred_call_is_made_at_once() -> None:
    logging.getLogger().handlers.clear()
    made: list[int] = []
    deferral()(made.append, 1)
    assert made == [1]
