"""The service itself: the pinned ledger, the declared streams, and what is known of them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from optstream.data.clock import Clock
from optstream.errors import OptStreamError, ParameterError
from optstream.ledger import Ledger
from optstream.service.intake import Intake
from optstream.service.limits import Clients
from optstream.service.metrics import Metrics
from optstream.service.refusals import Refusal
from optstream.service.views import View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optstream.service.limits import Client
    from optstream.service.settings import Settings

__all__ = ["Service"]

LOG = logging.getLogger("optstream.service")
AT_ONCE = 32
"""Streams that are looked at together."""
READERS = 4
"""Threads that read for clients; writers have their own, one for every stream."""
Answer = TypeVar("Answer")


class Service:
    """What the routes ask. It is made before the event loop runs, and fails if anything is not as declared."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        account = settings.ledger
        # A ledger that is missing, another one, or behind its witness is refused: its budget would be a fresh one.
        self.ledger = Ledger(
            account.url,
            key=account.key_file,
            expect=account.identity,
            witness=account.witness,
            timeout=account.timeout,
        )
        self.clients, self.metrics = Clients(settings), Metrics()
        try:
            self._enter_pools()
            self.intakes = {
                name: Intake(declared, self.ledger, settings.limits.waiting)
                for name, declared in settings.streams.items()
            }
            self.views = {name: View(intake, self.ledger) for name, intake in self.intakes.items()}
        except BaseException:
            self.ledger.close()
            raise
        self._turns = deque(self.views)
        for view in self.views.values():
            self.measure(view)
        self.penalised = self.followers = 0
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="optstream-read")
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="optstream-check")
        self._told = 0.0
        self._checked: float | None = None
        self._trouble: str | None = "not checked yet"
        self._watch: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self.stopping = asyncio.Event()

    def _enter_pools(self) -> None:
        """See to it that the ledger has the declared pools and members.

        Raises:
            ParameterError: It has them with another policy.
        """
        ledger = self.ledger
        for name, guarantee in self.settings.pools.items():
            with suppress(ParameterError):
                # Another process may make it at the same time; what it is held to is compared then.
                if name not in ledger.pools:
                    ledger.create_pool(name, guarantee)
            if ledger.pool(name).policy != guarantee:
                raise ParameterError(f"pools.{name} is {guarantee}, but the ledger has {ledger.pool(name).policy}")
        for name, declared in self.settings.streams.items():
            if declared.pool is not None:
                known = name in ledger.streams
                policy = ledger.policy(name) if known else declared.mechanism.guarantee
                clock = str(Clock.of(declared.step, declared.origin))
                ledger.create_stream(name, policy, pool=declared.pool, clock=clock)

    # Beginning and end.

    async def start(self) -> None:
        """Begin to watch the ledger."""
        await self._check()
        self._watch = asyncio.create_task(self._watching())

    async def announce_stop(self) -> None:
        """Let those who follow streams, or wait for a penalty to end, go."""
        self.stopping.set()
        async with self._news:
            self._news.notify_all()

    async def stop(self) -> None:
        """End what was begun, and close the ledger."""
        self.stopping.set()
        if self._watch is not None:
            self._watch.cancel()
        for intake in self.intakes.values():
            await intake.close()
        await asyncio.to_thread(self._readers.shutdown, cancel_futures=True)
        await asyncio.to_thread(self._checker.shutdown, cancel_futures=True)
        await asyncio.to_thread(self.ledger.close)

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the service."""
        try:
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
        except TimeoutError:
            return

    # Health.

    async def _watching(self) -> None:
        while not self.stopping.is_set():
            await self.pause(self.settings.check_seconds)
            await self._check()

    async def _check(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._checker, self._look)
        except OptStreamError as error:
            if self._trouble is None:
                LOG.error("the ledger is not well: %s", error)  # noqa: TRY400  (the message says it)
            self._trouble = type(error).__name__
        else:
            if self._trouble is not None:
                LOG.info("the ledger is well", extra={"fields": {"ledger": self.ledger.identity}})
            self._trouble, self._checked = None, monotonic()
        self.metrics.ready.set(self._trouble is None)
        async with self._news:
            self._news.notify_all()

    def _look(self) -> None:
        self.ledger.check()
        # With many streams each look takes some of them, so that watching never costs more than serving.
        for _ in range(min(AT_ONCE, len(self._turns))):
            view = self.views[self._turns[0]]
            self._turns.rotate(-1)
            view.refresh()
            self.measure(view)

    def measure(self, view: View) -> None:
        """Set the gauges of a stream."""
        metrics, budget = self.metrics, view.budget
        metrics.policy.labels(view.name).set(float(budget.policy.epsilon))
        metrics.left.labels(view.name).set(float(budget.least))
        metrics.open_steps.labels(view.name).set(view.open_steps)
        metrics.period.labels(view.name).set(-1 if view.released is None else view.released)
        if budget.pool is not None:
            metrics.pool_left.labels(budget.pool.name, view.name).set(float(budget.pool.left))
        if view.lag is not None:
            metrics.lag.labels(view.name).set(view.lag)

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the ledger was well when it was last looked at, which is not long ago, and what it is."""
        age = None if self._checked is None else monotonic() - self._checked
        fresh = age is not None and age < 3 * self.settings.check_seconds + self.settings.ledger.timeout
        status = "stopping" if self.stopping.is_set() else self._trouble or ("ok" if fresh else "stale")
        return status == "ok", {
            "status": status,
            "ledger": self.ledger.identity,
            "witness": self.settings.ledger.witness is not None,
            "age_seconds": None if age is None else round(age, 3),
        }

    def may_tell(self) -> bool:
        """Whether another refusal of too many requests is worth a line in the log: one a second."""
        now = monotonic()
        if now - self._told < 1:
            return False
        self._told = now
        return True

    # What clients do.

    def readable(self, name: str, client: Client) -> View:
        """Return a stream that a client may read.

        Raises:
            Refusal: It may not. Without the right to read it, nobody learns whether a stream exists.
        """
        declared = self.settings.streams.get(name)
        if declared is not None and declared.public:
            return self.views[name]
        if client.token is None:
            raise Refusal("Unauthorized", "a bearer token is needed")
        if name not in client.token.read:
            raise self._hidden(name, client)
        return self.views[name]

    def writable(self, name: str, client: Client) -> Intake:
        """Return a stream that a client may write; what is not declared is never made."""
        if client.token is None:
            raise Refusal("Unauthorized", "a bearer token is needed")
        if name not in client.token.write:
            raise self._hidden(name, client)
        return self.intakes[name]

    def _hidden(self, name: str, client: Client) -> Refusal:
        if client.token is not None and name in client.token.read | client.token.write:
            return Refusal("Forbidden", "the token does not allow this")
        return Refusal("NotFound", "no such stream is declared for this token")

    async def push(self, intake: Intake, when: Sequence[Any], values: Sequence[Any]) -> list[bytes]:
        """Take observations; return the periods that they complete, or the steps, as JSON."""
        releases = await intake.push(when, values)
        name, view = intake.declared.name, self.views[intake.declared.name]
        self.metrics.observations.labels(name).inc(len(when))
        view.note(releases)
        self.metrics.open_steps.labels(name).set(view.open_steps)
        if not releases:
            return []
        self.metrics.releases.labels(name).inc(len(releases))
        shown = await self.read(lambda: [view.news.shown(release) for release in releases])
        async with self._news:
            self._news.notify_all()
        return shown

    async def read(self, work: Callable[[], Answer]) -> Answer:
        """Read in a thread, so that the event loop goes on."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def news(self, seconds: float) -> bool:
        """Wait until something may have been released; return whether that was in time."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait()
        except TimeoutError:
            return False
        return True
