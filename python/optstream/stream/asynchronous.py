"""Streams for asyncio: the same stream, awaited instead of waited for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from optstream.errors import ParameterTypeError
from optstream.stream.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
    from datetime import datetime
    from types import TracebackType

__all__ = ["AsyncStream"]

Answer = TypeVar("Answer")


class AsyncStream:
    """A stream whose calls are awaited: the event loop goes on while a ledger is written or noise is drawn.

    Calls are carried out one after the other, in the order in which they were made. A call that is cancelled before its
    turn is not carried out; one that is cancelled later is carried out all the same, entirely or not at all. Whoever is
    not sure makes the call again, for which ``Stream(..., late="stored", duplicate="keep")`` is meant.

    Args:
        stream: The stream, which should not be used otherwise.

    Example:
        >>> import asyncio
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(ops.Guarantee(epsilon=1, w=3), sample=ops.EqualSampling(k=3), bounds=(0, 100))
        >>> async def main():
        ...     async with AsyncStream(ops.Stream(mechanism, name="visits")) as stream:
        ...         return [await stream.push(step, 50.0) for step in range(3)]
        >>> asyncio.run(main())
        [None, None, Release(periods=1, w=3, epsilon=1)]
    """

    def __init__(self, stream: Stream) -> None:
        if not isinstance(stream, Stream):
            raise ParameterTypeError(f"stream is of type {type(stream).__name__}, but must be Stream")
        self._stream = stream
        # One thread, so that calls keep their order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="optstream")

    def __repr__(self) -> str:
        return f"Async{self._stream!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def push(self, when: int | datetime, value: Any) -> Any:
        """Take one observation; return a release when it completes a period, else None. See :meth:`Stream.push`."""
        return await self._call(lambda: self._stream.push(when, value))

    async def push_many(self, when: Iterable[int | datetime], values: Iterable[Any]) -> list[Any]:
        """Take observations, all or none; return the releases of the periods that they complete."""
        moments, given = list(when), list(values)
        return await self._call(lambda: self._stream.push_many(moments, given))

    async def flush(self) -> Any:
        """Close the open period although steps at its end are missing; see :meth:`Stream.flush`."""
        return await self._call(self._stream.flush)

    async def discard(self) -> int:
        """Drop the observations of the open period; return their number."""
        return await self._call(self._stream.discard)

    async def releases(self, observations: AsyncIterable[tuple[int | datetime, Any]]) -> AsyncIterator[Any]:
        """Take observations as they come; give the releases of the periods that they complete."""
        async for when, value in observations:
            released = await self.push(when, value)
            if released is not None:
                yield released

    async def close(self) -> None:
        """Wait for the calls that were made, and take no more."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _call(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
