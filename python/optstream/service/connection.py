"""A connection that must send its request line and headers in time, and of which there may be so many only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from optstream.service.refusals import Refusal

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from optstream.service.settings import Limits

__all__ = ["Connection", "limited"]


class Connection(H11Protocol):
    """A connection of uvicorn with the limits that uvicorn does not have."""

    limits: ClassVar[Limits]
    shed: ClassVar[Callable[[str], None]]
    """Counts why connections were ended."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or tell the client to come back."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse("connections", Refusal("Busy", f"at most {self.limits.connections} connections are open"))
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; headers that have begun must end in time."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._disarm()
        elif self._deadline is None and self.conn.trailing_data[0]:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or too long, in the form of every refusal."""
        too_long = getattr(sys.exc_info()[1], "error_status_hint", 400) == 431  # noqa: PLR2004
        limit = self.limits.header_bytes
        refusal = Refusal("HeadersTooLarge", f"request line and headers have more than {limit} bytes")
        self._refuse("headers" if too_long else "malformed", refusal if too_long else Refusal("BadRequest", msg))

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.limits.header_seconds, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if not self.conn.trailing_data[0]:
            # Nothing was asked, so nothing is answered.
            type(self).shed("idle")
            self.transport.close()
            return
        seconds = self.limits.header_seconds
        self._refuse("slow", Refusal("Timeout", f"request line and headers took more than {seconds:g} s"))

    def _refuse(self, reason: str, refusal: Refusal) -> None:
        """Answer by hand: the parser may not be in a state to do it."""
        type(self).shed(reason)
        body = refusal.body()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"{name}: {value}" for name, value in (refusal.headers | headers).items()]
        start = f"HTTP/1.1 {refusal.status} {refusal.kind}"
        self.transport.write("\r\n".join([start, *lines, "", ""]).encode() + body)
        self.transport.close()


def limited(limits: Limits, shed: Callable[[str], None]) -> type[Any]:
    """Return the class of connections with these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits, "shed": staticmethod(shed)})
