"""Streams for asyncio: the order of calls, what cancelling does, and a loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

W = 4
RAW = 41.87654321


def mechanism() -> ops.OptStream:
    return ops.OptStream(ops.Guarantee(epsilon=1, w=W), sample=ops.EqualSampling(k=W), bounds=(0, 100))


def test_calls_that_are_made_at_once_are_carried_out_in_their_order() -> None:
    async def main() -> list[Any]:
        async with ops.AsyncStream(ops.Stream(mechanism())) as stream:
            # Out of order they would be refused.
            return await asyncio.gather(*(stream.push(step, RAW) for step in range(3 * W)))

    answers = asyncio.run(main())
    assert [answer.period for answer in answers if answer is not None] == [0, 1, 2]


def test_the_loop_goes_on_while_a_call_waits_and_cancelled_calls_are_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, pushed = threading.Event(), []
    stream = ops.Stream(mechanism(), disorder="accept")
    original = stream.push_many

    def slow(when: Any, values: Any) -> list[Any]:
        assert gate.wait(60)
        pushed.append(list(when))
        return original(when, values)

    monkeypatch.setattr(stream, "push_many", slow)

    async def main() -> None:
        async with ops.AsyncStream(stream) as waiting:
            first = asyncio.create_task(waiting.push(0, RAW))
            second = asyncio.create_task(waiting.push(1, RAW))
            await asyncio.sleep(0.05)
            assert not first.done()
            # The first has begun and is carried out all the same; the second has not.
            first.cancel()
            second.cancel()
            await asyncio.sleep(0.05)
            gate.set()
            await waiting.push(2, RAW)

    asyncio.run(main())
    assert pushed == [[0], [2]]
    assert stream.open_steps == 2


def test_releases_are_given_as_observations_come() -> None:
    async def observations() -> AsyncIterator[tuple[int, float]]:
        for step in range(2 * W + 1):
            yield step, RAW

    async def main() -> tuple[list[int], int, Any]:
        stream = ops.AsyncStream(ops.Stream(mechanism()))
        periods = [release.period async for release in stream.releases(observations())]
        left = await stream.discard()
        rest = await stream.flush()
        await stream.close()
        return periods, left, rest

    assert asyncio.run(main()) == ([0, 1], 1, None)


def test_errors_come_where_the_call_is_awaited() -> None:
    async def main() -> None:
        async with ops.AsyncStream(ops.Stream(mechanism())) as stream:
            with pytest.raises(ops.StreamError):
                await stream.push(3, RAW)
            assert await stream.push_many(range(W), [RAW] * W)

    asyncio.run(main())
    with pytest.raises(ops.ParameterTypeError):
        ops.AsyncStream("stream")  # type: ignore[arg-type]


def test_the_library_logs_what_happens_and_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="optstream")
    with ops.Ledger(tmp_path / "ledger.db", create=True) as ledger:
        stream = ops.Stream(mechanism(), ledger=ledger, name="visits", duplicate="keep")
        stream.push_many(range(W), [RAW] * W)
        ledger.set_policy("visits", ops.Guarantee(epsilon=0.5, w=W))
        with pytest.raises(ops.BudgetError):
            stream.push_many(range(W, 2 * W), [RAW] * W)
        ledger.void("visits", 5, "a test")
    said = [(record.name.split(".")[0], record.levelname, record.getMessage()) for record in caplog.records]
    assert {name for name, _, _ in said} == {"optstream"}
    words = "\n".join(message for _, _, message in said)
    for expected in ("ledger", "released period 0 of 'visits'", "BudgetError", "policy", "void"):
        assert expected in words
    assert str(RAW)[:8] not in words
    released = ops.Ledger(tmp_path / "ledger.db").stored("visits", 0).values
    assert not [value for value in released if str(value)[:7] in words]
