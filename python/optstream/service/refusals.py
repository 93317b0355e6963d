"""Refusals: every way in which a request is not granted, with its status. No message holds a raw value."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from optstream.errors import (
    BudgetError,
    ConflictError,
    DataError,
    LedgerError,
    OptStreamError,
    ParameterError,
    ParameterTypeError,
    StreamError,
    UnknownStreamError,
)

__all__ = ["KINDS", "Refusal", "refusal_of"]


class Kind(NamedTuple):
    """The status of a refusal and the headers that say what helps."""

    status: int
    why: str
    headers: tuple[tuple[str, str], ...] = ()


LATER = (("Retry-After", "5"),)
KINDS: dict[str, Kind] = {
    "BadRequest": Kind(400, "the request is not HTTP as it should be"),
    "Unauthorized": Kind(401, "a token is needed, or is not known", (("WWW-Authenticate", "Bearer"),)),
    "Forbidden": Kind(403, "the token does not allow it"),
    # Not 429: the budget of a window does not come back, so waiting does not help.
    "BudgetError": Kind(403, "the policy of the stream or its pool does not allow the release"),
    "NotFound": Kind(404, "no such page, stream or period"),
    "MethodNotAllowed": Kind(405, "the page does not take this method"),
    "Timeout": Kind(408, "the request did not arrive in time", (("Connection", "close"),)),
    "StreamError": Kind(409, "observations before these are missing, or do not fit the clock"),
    "ConflictError": Kind(409, "the period was released from other data or with another plan"),
    "BodyTooLarge": Kind(413, "the body is longer than the limit", (("Connection", "close"),)),
    "UnsupportedMediaType": Kind(415, "the body must be JSON, without an encoding"),
    "RequestError": Kind(422, "the request is not of the form that it must have"),
    "DataError": Kind(422, "a value is not finite, or a leaf is missing"),
    "ParameterError": Kind(422, "a parameter is out of its bound"),
    "ParameterTypeError": Kind(422, "a parameter has the wrong type"),
    "TooManyRequests": Kind(429, "the limit of the token, or of all clients without one", (("Retry-After", "1"),)),
    "HeadersTooLarge": Kind(431, "request line and headers are longer than the limit", (("Connection", "close"),)),
    "InternalError": Kind(500, "a defect of the service; the log has the request's id"),
    "LedgerError": Kind(503, "the ledger does not answer; the same request may be made again", LATER),
    "Busy": Kind(503, "the service has more to do than it takes on, or is stopping", LATER),
    "AnswerTimeout": Kind(503, "no answer in time; the same request may be made again", LATER),
}
"""All kinds of refusals. The service gives no others."""

LIBRARY: tuple[type[OptStreamError], ...] = (
    BudgetError,
    ConflictError,
    LedgerError,
    StreamError,
    DataError,
    ParameterError,
    ParameterTypeError,
)
AGAIN = "nothing was lost; the same request may be made again"


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """A request that is not granted."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message

    @property
    def status(self) -> int:
        """The status of the answer."""
        return KINDS[self.kind].status

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return dict(KINDS[self.kind].headers)

    def content(self, request_id: str | None = None) -> dict[str, Any]:
        """Return the one form that all refusals have."""
        error = {"type": self.kind, "message": self.message}
        return {"error": error if request_id is None else error | {"request_id": request_id}}

    def body(self, request_id: str | None = None) -> bytes:
        """Return the same as JSON."""
        return json.dumps(self.content(request_id), separators=(",", ":")).encode()


def refusal_of(error: BaseException) -> Refusal:
    """Return the refusal that an error means.

    >>> refusal_of(UnknownStreamError("no")).status, refusal_of(KeyError("a value")).message
    (404, 'a defect of the service; nothing of the request is in this message')
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, UnknownStreamError):
        return Refusal("NotFound", "the stream has no releases")
    kind = next((kind.__name__ for kind in LIBRARY if isinstance(error, kind)), None)
    if kind == "LedgerError":
        # What the database said, and where it is, is for the operator.
        return Refusal(kind, AGAIN)
    if kind is None:
        return Refusal("InternalError", "a defect of the service; nothing of the request is in this message")
    return Refusal(kind, str(error))
