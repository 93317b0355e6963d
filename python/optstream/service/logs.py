"""Logs as lines of JSON, with the id of the request. No line holds a value, a token or a path that a client sent."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

__all__ = ["REQUEST", "JsonLines", "log_as_json"]

REQUEST: ContextVar[str | None] = ContextVar("optstream_request", default=None)
"""The id of the request that is being answered."""


class JsonLines(logging.Formatter):
    """One JSON object for every record.

    >>> record = logging.LogRecord("optstream", logging.INFO, "", 0, "period %d", (3,), None)
    >>> json.loads(JsonLines().format(record))["message"]
    'period 3'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        content = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if REQUEST.get() is not None:
            content["request_id"] = str(REQUEST.get())
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["trace"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str)


def log_as_json(level: int = logging.INFO) -> None:
    """Send all logs of the process to standard error as lines of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # It tells the target of every request, which a client may have filled with anything.
    logging.getLogger("uvicorn.access").disabled = True
