"""The gate of the service: whatever comes in passes here first, and whatever goes out passes here last.

It finds out who asks, how often and how much at a time; ends requests that arrive too slowly or are too long while they
are being read, and answers that are taken too slowly; and writes one line of the log for every request.
"""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import ExitStack, suppress
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from optstream.service.logs import REQUEST
from optstream.service.refusals import Refusal, refusal_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from optstream.service.limits import Client
    from optstream.service.service import Service

__all__ = ["Gateway"]

LOG = logging.getLogger("optstream.service")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
PROBES = frozenset({"/livez", "/readyz"})
LINGER = 2.0
"""Seconds in which what a client still sends is thrown away, so that it gets to read why."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class Gateway:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self._service)
        mark = REQUEST.set(exchange.id)
        begun = perf_counter()
        try:
            await self._pass(scope, exchange)
        finally:
            self._finish(scope, exchange, perf_counter() - begun)
            REQUEST.reset(mark)

    async def _pass(self, scope: Scope, exchange: Exchange) -> None:
        try:
            with ExitStack() as stack:
                client = self._admitted(scope, exchange, stack)
                scope["optstream.client"] = client
                scope["optstream.exchange"] = exchange
                exchange.check_size(scope)
                follows = scope["path"].endswith("/events")
                async with asyncio.timeout(None if follows else exchange.seconds):
                    await self._app(scope, exchange.receive, exchange.send)
        except Refusal as refusal:
            await self._refuse(exchange, refusal)
        except TimeoutError:
            await self._refuse(exchange, Refusal("AnswerTimeout", "the same request may be made again"))
        except asyncio.CancelledError:
            # The time to stop is over.
            with suppress(BaseException):
                await self._refuse(exchange, Refusal("Busy", "the service stops; the same request may be made again"))
        except Exception as error:
            LOG.exception("a defect of the service", extra={"fields": {"type": type(error).__name__}})
            await self._refuse(exchange, refusal_of(error))

    def _admitted(self, scope: Scope, exchange: Exchange, stack: ExitStack) -> Client:
        clients = self._service.clients
        if scope["path"] in PROBES:
            stack.enter_context(clients.probes.gate.passing())
            return clients.anonymous
        try:
            client = clients.find(exchange.headers.get(b"authorization"))
        except Refusal:
            # Who guesses has the limits of everybody without a token.
            stack.enter_context(clients.anonymous.gate.passing())
            raise
        exchange.client = client.name
        stack.enter_context(client.gate.passing())
        return client

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        if refusal.kind == "TooManyRequests" and self._service.penalised < self._service.settings.limits.connections:
            self._service.penalised += 1
            try:
                await self._service.pause(self._service.settings.limits.penalty_seconds)
            finally:
                self._service.penalised -= 1
        await exchange.refuse(refusal)

    def _finish(self, scope: Scope, exchange: Exchange, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        metrics = self._service.metrics
        metrics.latency.labels(route).observe(seconds)
        if exchange.refused is not None:
            metrics.refusals.labels(route, exchange.refused).inc()
            if exchange.refused == "TooManyRequests" and not self._service.may_tell():
                return
        fields = {
            "method": scope["method"] if scope["method"].isalpha() and len(scope["method"]) <= 10 else "?",  # noqa: PLR2004
            "route": route,
            "stream": exchange.stream,
            "status": exchange.status,
            "type": exchange.refused,
            "token": exchange.client,
            "bytes_in": exchange.taken,
            "seconds": round(seconds, 6),
            "request_id": exchange.id,
        }
        LOG.info("request", extra={"fields": {name: value for name, value in fields.items() if value is not None}})


class Exchange:
    """One request and its answer, read and written within limits."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service) -> None:
        self._receive, self._send, self._limits = receive, send, service.settings.limits
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.id = given.decode() if REQUEST_ID.fullmatch(given) else uuid4().hex
        self.seconds = self._limits.body_seconds + self._limits.answer_seconds
        self.client: str | None = None
        self.stream: str | None = None
        self.status: int | None = None
        self.refused: str | None = None
        self.taken = 0
        self._deadline = monotonic() + self._limits.body_seconds
        self._unread = self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        self._expects = b"expect" in self.headers

    def complain(self, error: Exception) -> None:
        """Tell the operator of an error that is none of the client's business."""
        LOG.error("%s: %s", type(error).__name__, error, extra={"fields": {"request_id": self.id}})

    def check_size(self, scope: Scope) -> None:
        """Refuse headers that are too long, and a body that says that it is, before a byte of it is read."""
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._limits.header_bytes:
            raise Refusal(
                "HeadersTooLarge", f"request line and headers have more than {self._limits.header_bytes} bytes"
            )
        length = self.headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length[:20]) > self._limits.body_bytes:
            raise self._too_large()

    def _too_large(self) -> Refusal:
        return Refusal("BodyTooLarge", f"the body has more than {self._limits.body_bytes} bytes")

    async def receive(self) -> Message:
        """Return the next piece of the request, which must come in time and must not be too much."""
        if not self._unread:
            return await self._receive()
        try:
            async with asyncio.timeout(max(0.0, self._deadline - monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise Refusal("Timeout", f"the body took more than {self._limits.body_seconds:g} s") from None
        if message["type"] == "http.request":
            self.taken += len(message.get("body", b""))
            self._unread = bool(message.get("more_body", False))
            if self.taken > self._limits.body_bytes:
                raise self._too_large()
        else:
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        """Send a piece of the answer, which the client must take in time."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = [(b"x-request-id", self.id.encode()), *HEADERS]
            if self._unread:
                # The rest of the request will not be read.
                extra.append((b"connection", b"close"))
            names = {name for name, _ in message.get("headers", [])}
            message["headers"] = [*message.get("headers", []), *(one for one in extra if one[0] not in names)]
        elif self._unread and not self._expects and not message.get("more_body", False):
            await self._out({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b""}
        await self._out(message)

    async def _out(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                await self._send(message)
        except TimeoutError:
            raise ConnectionAbortedError("the client does not take the answer") from None

    async def _drain(self) -> None:
        """Throw away what a client still sends: a connection closed at once would lose the answer on its way."""
        rest = 4 * self._limits.body_bytes
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                while rest > 0:
                    message = await self._receive()
                    rest -= len(message.get("body", b""))
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal, unless an answer has begun."""
        self.refused = refusal.kind
        if self.status is not None:
            return
        body = refusal.body(self.id)
        headers: list[tuple[bytes, Any]] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((name.lower().encode(), value.encode()) for name, value in refusal.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})
