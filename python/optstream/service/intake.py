"""The intake of one declared stream: requests that wait at the same time are written together.

One durable transaction then serves many clients. If observations of one of them are refused, each is tried by itself,
so that nobody is refused for what another has sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from optstream.data.clock import Clock
from optstream.errors import (
    BudgetError,
    ConflictError,
    DataError,
    OptStreamError,
    ParameterError,
    ParameterTypeError,
    StreamError,
)
from optstream.service.refusals import Refusal
from optstream.stream.asynchronous import AsyncStream
from optstream.stream.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from optstream.ledger import Ledger
    from optstream.service.settings import Declared

__all__ = ["Intake"]

TOGETHER = 4096
"""Observations that are written together."""
OF_THE_REQUEST = (BudgetError, ConflictError, DataError, ParameterError, ParameterTypeError, StreamError)
"""What may be refused because of one of several requests."""


@dataclass(eq=False)
class Waiting:
    """A request whose observations are not written yet."""

    when: Sequence[int | datetime]
    values: Sequence[Any]
    answer: asyncio.Future[list[Any]]
    numbers: set[int] = field(default_factory=set)
    """Its periods, or its steps where they leave one by one."""


class Intake:
    """A declared stream, and the requests that wait for it."""

    def __init__(self, declared: Declared, ledger: Ledger, most: int) -> None:
        self.declared = declared
        self.clock = Clock.of(declared.step, declared.origin)
        rules: dict[str, Any] = {
            name: getattr(declared, name) for name in ("emit", "late", "duplicate", "disorder", "missing", "absent")
        }
        self.stream = Stream(
            declared.mechanism,
            name=declared.name,
            ledger=ledger,
            step=declared.step,
            origin=declared.origin,
            # The settings declare the stream, and pin the ledger whose budget it uses.
            create=True,
            **rules,
        )
        self._async = AsyncStream(self.stream)
        self._number = attrgetter(declared.emit)
        self._most = most
        self._waiting: list[Waiting] = []
        self._work: asyncio.Task[None] | None = None

    async def push(self, when: Sequence[int | datetime], values: Sequence[Any]) -> list[Any]:
        """Take observations, all or none; return the releases of the periods that they complete or belong to."""
        if len(self._waiting) >= self._most:
            raise Refusal("Busy", f"{self._most} requests wait for this stream already")
        unit = 1 if self.declared.emit == "step" else self.declared.mechanism.guarantee.w
        # What does not fit the clock is refused here, before anybody waits for it.
        numbers = {self.clock.step_of(moment) // unit for moment in when}
        request = Waiting(when, values, asyncio.get_running_loop().create_future(), numbers)
        self._waiting.append(request)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._write())
        # A client that goes away does not take back what it has sent.
        return await asyncio.shield(request.answer)

    async def close(self) -> None:
        """Wait for what was begun."""
        if self._work is not None:
            await self._work
        await self._async.close()

    async def _write(self) -> None:
        while self._waiting:
            group = self._next_group()
            try:
                released = await self._write_together(group)
            except OF_THE_REQUEST as error:
                if len(group) == 1:
                    _fail(group, error)
                    continue
                for one in group:
                    await self._write_alone(one)
            except BaseException as error:
                _fail(group, error)
                if not isinstance(error, Exception):
                    raise
            else:
                _share(group, released, self._number)

    def _next_group(self) -> list[Waiting]:
        count, total = 0, 0
        for request in self._waiting:
            total += len(request.when)
            if count and total > TOGETHER:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _write_together(self, group: Sequence[Waiting]) -> list[Any]:
        when = [moment for request in group for moment in request.when]
        return await self._async.push_many(when, [value for request in group for value in request.values])

    async def _write_alone(self, request: Waiting) -> None:
        try:
            released = await self._write_together([request])
        except OptStreamError as error:
            _fail([request], error)
        else:
            _share([request], released, self._number)


def _fail(group: Sequence[Waiting], error: BaseException) -> None:
    for request in group:
        if not request.answer.done():
            request.answer.set_exception(error)
            # A client that has gone does not ask; the log has it.
            request.answer.exception()


def _share(group: Sequence[Waiting], released: Sequence[Any], number: Callable[[Any], int]) -> None:
    """Give every request the releases of its periods or steps; one that nobody sent goes to who came right after."""
    shares: list[list[Any]] = [[] for _ in group]
    for release in released:
        owners = [place for place, request in enumerate(group) if number(release) in request.numbers]
        if not owners:
            owners = [place for place, request in enumerate(group) if max(request.numbers) > number(release)][:1]
        for place in owners or [len(group) - 1]:
            shares[place].append(release)
    for request, share in zip(group, shares, strict=True):
        if not request.answer.done():
            request.answer.set_result(share)
