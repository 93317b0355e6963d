"""Every order of the database operations of three processes, on small ledgers, with crashes at every point.

The real code of the ledger runs in three threads that stand for processes: each has a ledger of its own, with all that
a process remembers, on one database in memory. A scheduler lets one of them carry out one database operation at a time.
Operations are transactions, which a database carries out entirely or not at all, so a crash between two of them is the
same as a process that is never let on; hence a search through all orders of operations, in which every prefix is
looked at, is a search through all crashes of processes too. A crash of the machine also takes what was not forced to
the disk: what has left must not be among it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import apsw
import numpy as np
import pytest

import optstream as ops
from optstream.ledger import book, charges, log, protocol
from optstream.ledger.database import BehindError, Database
from optstream.ledger.log import FIRST, Log
from optstream.ledger.plans import PricedPlan
from optstream.ledger.sqlite import _Statements
from optstream.mechanism.release import Parts
from optstream.privacy import accounting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from optstream.ledger.database import Transaction
    from optstream.ledger.log import View

W = 3
DRAWS = iter(range(10**9))


class Drawing(ops.OptStream):
    """A mechanism whose every draw is another, at no cost of time."""

    def draw(self, units: Any, retry: Any = None) -> Parts:  # noqa: ARG002
        return Parts(np.full((1, W), float(next(DRAWS))), np.empty((1, 0)), np.zeros((1, W), dtype=np.int64))


def mechanism(epsilon: Fraction, k: int = W) -> ops.OptStream:
    return Drawing(ops.Guarantee(epsilon=epsilon, w=W), sample=ops.EqualSampling(k=k), bounds=(0, 9))


WHOLE, HALF, ENDS = mechanism(Fraction(1)), mechanism(Fraction(1, 2)), mechanism(Fraction(1), 2)
"""Periods of the first and of the last kind do not fit next to each other: a window over both costs 7/6."""
DATA = {"x": np.array([1.0, 2.0, 3.0]), "y": np.array([3.0, 4.0, 5.0])}
Task = tuple[Any, ...]
"""What a process does: ("release", mechanism, data, period), or ("policy", epsilon)."""


class Killed(BaseException):
    """Raised in a process that is not let on any more."""


class Turns:
    """Who may carry out the next operation."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.saw: Any = None
        """What the last operation told the process that carried it out."""
        self.forced_to: dict[str, Any] = {}

    def wait(self) -> None:
        """Stop before an operation until it is let on; outside of any process go on at once."""
        process: Process | None = getattr(self.local, "process", None)
        if process is not None and not process.stopped:
            process.resting.release()
            process.let_on.acquire()
            if process.stopped:
                raise Killed


class Process:
    """A thread that stands for a process, stopped before every operation."""

    def __init__(self, turns: Turns, work: Callable[[], None]) -> None:
        self.resting, self.let_on = threading.Semaphore(0), threading.Semaphore(0)
        self.stopped = self.ended = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(turns, work), daemon=True)
        self.thread.start()
        self.resting.acquire()

    def _run(self, turns: Turns, work: Callable[[], None]) -> None:
        turns.local.process = self
        try:
            work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001
            self.error = error
        self.ended = True
        self.resting.release()

    def place(self) -> tuple[int, ...]:
        """Return where in the code of the ledger the process has stopped."""
        frame = None if self.ended else sys._current_frames().get(self.thread.ident or 0)
        lines = []
        while frame is not None:
            if "ledger" in frame.f_code.co_filename or frame.f_code.co_name == "carry_out":
                lines.append(frame.f_lineno)
            frame = frame.f_back
        return tuple(lines)

    def step(self) -> None:
        """Let one operation be carried out."""
        self.let_on.release()
        self.resting.acquire()

    def kill(self) -> None:
        if not self.ended:
            self.stopped = True
            self.let_on.release()
            self.thread.join()


class InMemory(Database[apsw.Connection]):
    """One database for all processes of a world, whose operations come one at a time."""

    blob, clustered, location = "BLOB", "WITHOUT ROWID", "in memory"
    errors, duplicates = (apsw.Error,), apsw.ConstraintError

    def __init__(self, connection: apsw.Connection, turns: Turns) -> None:
        super().__init__()
        self.connection, self.turns = connection, turns

    @contextmanager
    def transaction(self, *, write: bool = True) -> Iterator[Transaction]:
        self.turns.wait()
        self.turns.saw = self.look()
        self.connection.execute("BEGIN")
        try:
            yield _Statements(self.connection)  # type: ignore[arg-type]
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        if write:
            self._force()

    def write_alone(self, statement: str, values: Sequence[Any], *, forced: bool = True) -> int:
        self.turns.wait()
        self.turns.saw = written = _Statements(self.connection).write(statement, values)  # type: ignore[arg-type]
        if forced:
            self._force()
        return written

    def look(self) -> tuple[Any, ...]:
        """Return what is in the database, but for times and for values that were drawn."""
        if not self.version(_Statements(self.connection)):  # type: ignore[arg-type]
            return ()
        rows = self.connection.execute(
            "SELECT number, kind, period, charge, plan, CASE WHEN kind = 'release' THEN 0 ELSE data END"
            " FROM optstream_entries ORDER BY number"
        )
        return tuple(rows)

    def _force(self) -> None:
        rows = self.connection.execute("SELECT stream, max(number) FROM optstream_entries GROUP BY stream").fetchall()
        self.turns.forced_to = {str(stream): number for stream, number in rows}

    def version(self, reading: Transaction) -> int:
        return len(reading.rows("SELECT 1 FROM sqlite_schema WHERE name = 'optstream_ledger'"))

    def lock_schema(self, change: Transaction) -> None: ...
    def damage(self) -> list[str]:
        return []

    def _connect(self, *, forced: bool) -> apsw.Connection:
        raise NotImplementedError

    _close = backup = _is_alive = _begin = _alone = _explain = _connect  # type: ignore[assignment]


class World:
    """A ledger with some processes, each with a list of tasks."""

    def __init__(self, tasks: Sequence[Sequence[Task]], start: Sequence[Task], make_log: type[Log]) -> None:
        self.turns = Turns()
        self.connection = apsw.Connection(":memory:")
        self.make_log = make_log
        self.given: list[tuple[int, float]] = []
        first = self.ledger(create=True)
        for task in start:
            self.carry_out(first, task)
        # Each has looked at the ledger before, and remembers what it has seen.
        ledgers = [self.ledger() for _ in tasks]
        for ledger in ledgers:
            for made in (WHOLE, HALF, ENDS):
                ledger.enrol("a", made, create=True)
            for period in (0, 1):
                ledger._charges.change("a", [period], lambda view: ([], None))  # noqa: ARG005
        self.processes = [
            Process(self.turns, partial(self.carry_out_all, ledger, mine))
            for ledger, mine in zip(ledgers, tasks, strict=True)
        ]

    def ledger(self, *, create: bool = False) -> ops.Ledger:
        database = InMemory(self.connection, self.turns)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(book, "_open", lambda *_, **__: database)
            patch.setattr(book, "Log", self.make_log)
            # Every world has the same key for digests, so that their states can be compared.
            patch.setattr(os, "urandom", bytes)
            return ops.Ledger("memory", create=create)

    def carry_out_all(self, ledger: ops.Ledger, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.carry_out(ledger, task)

    def carry_out(self, ledger: ops.Ledger, task: Task) -> None:
        try:
            if task[0] == "policy":
                ledger.set_policy("a", ops.Guarantee(epsilon=task[1], w=W))
            elif task[0] == "charge":
                units = task[1].read(DATA[task[2]]).units
                plan = PricedPlan.of(task[1])
                ledger._protocol.enrol("a", plan, create=True)
                ledger._charges.charge("a", plan, ledger._protocol.digests("a", task[3], units))
            else:
                _, made, data, period = task
                values = ledger.release(made, DATA[data], stream="a", period=period).values
                self.given.append((period, values[0]))
        except (ops.ConflictError, ops.BudgetError):
            pass

    def problems(self) -> list[str]:
        """Return which invariants do not hold now, by code that shares nothing with the ledger but the accountant."""
        found = []
        forms: dict[int, set[float]] = {}
        for period, value in self.given:
            forms.setdefault(period, set()).add(value)
        found += [f"period {period} has left in two forms" for period, values in forms.items() if len(values) > 1]
        plans = {bytes(made): costs for made, costs in self.connection.execute("SELECT id, costs FROM optstream_plans")}
        charged: dict[int, bytes] = {}
        stored: dict[int, int] = {}
        policy = Fraction(0)
        for number, kind, period, plan, content in self.connection.execute(
            "SELECT number, kind, period, plan, content FROM optstream_entries ORDER BY number"
        ):
            if kind == "policy":
                policy = Fraction(json.loads(content)["epsilon"])
                continue
            if kind == "charge":
                charged[period] = plan
            elif kind == "release":
                if period in stored:
                    found.append(f"period {period} is stored twice")
                stored[period] = number
            costs = [
                accounting.moved(cost, at * W)
                for at, made in charged.items()
                for cost in accounting.from_data(json.loads(plans[made]))
            ]
            first, windows = accounting.window_costs(costs, W)
            meeting = [cost for at, cost in enumerate(windows, first) if (period - 1) * W < at < (period + 1) * W]
            worst = max(meeting, default=Fraction(0))
            if worst > policy:
                found.append(f"entry {number} makes a window cost {worst}, but its policy allows {policy}")
        for period in forms:
            if period not in charged or not 0 < stored.get(period, 0) <= self.turns.forced_to.get("a", 0):
                found.append(f"period {period} has left, but is not charged and stored on the disk")
        return found

    def fingerprint(self) -> tuple[Any, ...]:
        """Return all that the future depends on: what is in the database, and what every process has seen."""
        left = frozenset((period, len({value for at, value in self.given if at == period})) for period, _ in self.given)
        return InMemory(self.connection, self.turns).look(), self.turns.forced_to.get("a", 0), left

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        self.connection.close()


class Explorer:
    """A search through all orders, that goes back to the beginning for every branch."""

    def __init__(self, tasks: Sequence[Sequence[Task]], start: Sequence[Task] = (), make_log: type[Log] = Log) -> None:
        self.make: Callable[[], World] = lambda: World(tasks, start, make_log)
        self.seen: set[Any] = set()
        self.states = self.orders = 0
        self.problems: list[str] = []

    def run(self, most: int | None = None) -> Explorer:
        """Look at every state; stop at the first problem."""
        waiting: list[tuple[int, ...]] = [()]
        while waiting and not self.problems and (most is None or self.states < most):
            self._follow(waiting.pop(), waiting)
        return self

    def _follow(self, order: tuple[int, ...], waiting: list[tuple[int, ...]]) -> None:
        """Go along an order and then on with the first process that can, noting where others could."""
        world = self.make()
        self.orders += 1
        # What a process will do next depends on where it is, and on what it has seen since it last looked.
        history: list[tuple[Any, ...]] = [() for _ in world.processes]
        try:
            position = 0
            while not self.problems:
                if position >= len(order):
                    mark = (world.fingerprint(), tuple(history))
                    if mark in self.seen:
                        return
                    self.seen.add(mark)
                    self.states += 1
                    self.problems = world.problems()
                    able = [index for index, process in enumerate(world.processes) if not process.ended]
                    if not able:
                        errors = [process.error for process in world.processes if process.error is not None]
                        self.problems += [f"a process failed: {error!r}" for error in errors]
                        return
                    waiting += [(*order, other) for other in able[1:]]
                    order = (*order, able[0])
                chosen = order[position]
                world.processes[chosen].step()
                saw = world.turns.saw
                # A look replaces what was known; what is written since is added to it.
                known = (*history[chosen][1:], saw) if isinstance(saw, int) else (saw,)
                history[chosen] = (world.processes[chosen].place(), *known)
                position += 1
        finally:
            world.close()


class RenumberingLog(Log):
    """A log with the defect: a replaced charge moves to a new number, and its old number becomes free."""

    def append(self, view: View, drafts: Any, *, forced: bool = True, also: Any = None) -> View:
        del forced, also
        freed = [draft.charge for draft in drafts if draft.kind == "charge" and draft.charge]
        entries = self.sealed(view, [d._replace(charge=0) if d.kind == "charge" else d for d in drafts])
        with self.database.transaction() as change:
            if change.write(FIRST, *[(view.stream, *entry) for entry in entries]) != len(entries):
                raise BehindError("another process was faster")
            for number in freed:
                change.write("DELETE FROM optstream_entries WHERE stream = ? AND number = ?", (view.stream, number))
        fresh = replace(view, states={p: s for p, s in view.states.items() if s.number not in freed})
        return fresh.after(entries)

    def _checked_head(self, reading: Transaction, stream: str) -> log.Head:
        return self.head(reading, stream)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (charges, protocol):
        monkeypatch.setattr(module, "pause", lambda _: None)


CASES: dict[str, tuple[list[list[Task]], list[Task]]] = {
    "one period, the same data": ([[("release", WHOLE, "x", 1)]] * 3, []),
    "one period, other data and plans": (
        [[("release", WHOLE, "x", 1)], [("release", WHOLE, "y", 1)], [("release", HALF, "x", 1)]],
        [],
    ),
    "a charge that is left behind, corrected, and a neighbour": (
        [[("charge", WHOLE, "x", 1)], [("release", WHOLE, "y", 1)], [("release", ENDS, "x", 2)]],
        [],
    ),
    "a policy becomes smaller": (
        [[("policy", Fraction(1, 2))], [("release", WHOLE, "x", 1)], [("release", HALF, "x", 2)]],
        [],
    ),
}


LONG = "a charge that is left behind, corrected, and a neighbour"


@pytest.mark.parametrize("case", CASES)
def test_the_invariants_hold_in_every_order(case: str, record_property: Callable[[str, object], None]) -> None:
    explorer = Explorer(*CASES[case]).run()
    record_property("states", explorer.states)
    print(f"{case}: {explorer.states} states, {explorer.orders} orders")  # noqa: T201
    assert explorer.problems == []
    assert explorer.states > 100


def test_numbers_that_become_free_are_found() -> None:
    """The defect that the log is made against is found when it is put back."""
    tasks, start = CASES[LONG]
    explorer = Explorer(tasks, start, RenumberingLog).run()
    assert any("makes a window cost 7/6, but its policy allows 1" in problem for problem in explorer.problems)
