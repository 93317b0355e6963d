"""Limits: how often and how much at a time a client may ask."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from time import monotonic
from typing import TYPE_CHECKING

from optstream.service.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optstream.service.settings import Limits, Settings, TokenSettings

__all__ = ["Client", "Clients", "Gate"]


@dataclass
class Gate:
    """A bucket of requests that fills steadily, and a number of requests that may be under way."""

    per_second: float
    burst: int
    concurrent: int
    clock: Callable[[], float] = monotonic
    _level: float = field(init=False)
    _seen: float = field(init=False)
    busy: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._level, self._seen = float(self.burst), self.clock()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Let a request pass, or raise.

        >>> gate = Gate(per_second=1, burst=1, concurrent=1, clock=lambda: 0.0)
        >>> with gate.passing():
        ...     pass
        >>> with gate.passing():
        ...     pass
        Traceback (most recent call last):
        optstream.service.refusals.Refusal: TooManyRequests: too many requests: at most 1 a second
        """
        if self.busy >= self.concurrent:
            raise Refusal("TooManyRequests", f"too many requests at a time: at most {self.concurrent}")
        now = self.clock()
        self._level = min(float(self.burst), self._level + (now - self._seen) * self.per_second)
        self._seen = now
        if self._level < 1:
            raise Refusal("TooManyRequests", f"too many requests: at most {self.per_second:g} a second")
        self._level -= 1
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1


@dataclass(frozen=True)
class Client:
    """Who asks: a token that is known, or anybody."""

    token: TokenSettings | None
    gate: Gate

    @property
    def name(self) -> str | None:
        """The name of the token."""
        return None if self.token is None else self.token.name


class Clients:
    """All clients: one for every token, and one for everybody without."""

    def __init__(self, settings: Settings) -> None:
        limits: Limits = settings.limits
        anonymous = (limits.anonymous_per_second, limits.anonymous_burst, limits.anonymous_concurrent)
        self.anonymous = Client(None, Gate(*anonymous))
        # Whoever watches the process must hear from it while others flood it.
        self.probes = Client(None, Gate(*anonymous))
        self._known = [
            Client(token, Gate(token.per_second, token.burst, token.concurrent)) for token in settings.tokens
        ]

    def find(self, authorization: bytes | None) -> Client:
        """Return who sent a header; without one, anybody.

        All digests are compared, each in the same time, so that how long it takes says nothing about a token.

        Raises:
            Refusal: The header holds no token that is known.
        """
        if authorization is None:
            return self.anonymous
        kind, _, given = authorization.partition(b" ")
        digest, found = sha256(given.strip()).digest(), None
        for client in self._known:
            if client.token is not None and compare_digest(client.token.digest, digest):
                found = client
        if found is None or kind.lower() != b"bearer":
            raise Refusal("Unauthorized", "the bearer token is not known")
        return found
