"""What streams, ledgers, audits and evaluations ask of a mechanism, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from optstream.errors import ParameterError, ParameterTypeError
from optstream.privacy.accounting import TouchCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from optstream import _core
    from optstream.estimate.estimator import Estimator
    from optstream.estimate.memory import Memory
    from optstream.mechanism.engine import Periods
    from optstream.mechanism.loop import Priced
    from optstream.mechanism.release import Parts
    from optstream.mechanism.state import State
    from optstream.mechanism.step_release import Stepped
    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.privacy.accounting import Cost
    from optstream.privacy.guarantee import Guarantee
    from optstream.privacy.statement import Statement

    Array = NDArray[np.float64]
    Retry = tuple[_core.CuratorKey, Sequence[bytes]]

__all__ = ["Left", "Mechanism", "Walk", "Walks", "check_mechanism"]


class Mechanism(ABC):
    """Something that releases series with a guarantee: :class:`OptStream`, or one of :mod:`optstream.baselines`.

    A mechanism is frozen, and valid from its construction. It says what it costs without data, and holds none.
    """

    guarantee: Guarantee
    bounds: tuple[float, float]
    hierarchy: Hierarchy | None
    """The tree of groups whose leaves are the streams, if there are several."""
    integers: bool
    """Whether released values are whole numbers."""
    retune: bool
    """Whether what is measured is chosen anew from what was released."""
    streams: int
    """The number of streams that are released together, without a hierarchy."""
    emits: ClassVar[tuple[str, ...]] = ()
    """What streams and ledgers can let leave: whole periods, every step, or nothing; the usual first."""

    @property
    @abstractmethod
    def statement(self) -> Statement:
        """What one window costs, stage by stage. No data is needed."""

    @abstractmethod
    def release(self, x: Any) -> Any:
        """Release whole periods; what returns has ``values`` and a ``statement``."""

    def truth(self, x: Array) -> Array:
        """Return what the released values of a series stand for: the series, unless it says otherwise."""
        return x

    # What a stream or a ledger asks. A mechanism whose releases nothing goes on from answers nothing of it.

    @property
    def description(self) -> str:
        """Every public parameter, as canonical JSON."""
        raise self._lacking("a description")

    @property
    def digest(self) -> bytes:
        """What stands for the mechanism in a ledger."""
        raise self._lacking("a description")

    @property
    def spacing(self) -> float:
        """The step of the grid."""
        return self.statement.grid

    @property
    def steady_epsilon(self) -> Fraction:
        """What the worst window of an endless stream costs."""
        return self.statement.epsilon

    @property
    def estimator(self) -> Estimator | None:
        """What turns measured periods into estimates, if they are."""
        return None

    def remembered(self, state: Mapping[str, Any] | None = None) -> Memory:  # noqa: ARG002
        """Return what an estimate knows before anything is released, or what it knew in a state that it gave."""
        raise self._lacking("an Estimate")

    @property
    def costs(self) -> tuple[Cost, ...]:
        """What one period costs, on its steps 0 to w - 1."""
        return self.costs_when({})

    def costs_when(self, said: Mapping[str, Any]) -> tuple[Cost, ...]:  # noqa: ARG002  (nothing is known of steps)
        """Return what a period costs in circumstances that a plan says, by default all that a window may cost.

        Args:
            said: Plain data: nothing, or what :attr:`walks` says of a period.
        """
        return (TouchCost(0, self.guarantee.w, self.steady_epsilon),)

    def read(self, x: Any) -> Periods:  # noqa: ARG002
        """Return the data of whole periods as integers of the grid. Nothing is drawn."""
        raise self._lacking("whole periods")

    def draw(self, units: NDArray[np.int64], retry: Retry | None = None) -> Parts:  # noqa: ARG002
        """Draw the release of one period."""
        raise self._lacking("whole periods")

    def finish(self, parts: Parts, period: int, memory: Memory) -> Parts:  # noqa: ARG002
        """Return the estimate of a drawn period, and remember it; without an estimate the period as it is."""
        return parts

    def assemble_period(
        self,
        parts: Parts,  # noqa: ARG002
        period: int,  # noqa: ARG002
        start: int | datetime | None = None,  # noqa: ARG002
        statement: Statement | None = None,  # noqa: ARG002
    ) -> Any:
        """Return the release of one period of a stream."""
        raise self._lacking("periods in a stream")

    @property
    def walks(self) -> Walks:
        """How the steps of a period are released one by one.

        Raises:
            ParameterError: They cannot be.
        """
        raise self._lacking("steps that leave one by one")

    def _lacking(self, what: str) -> ParameterError:
        return ParameterError(f"mechanism is {type(self).__name__}, which has no {what}, but must have")


class Left(Protocol):
    """A step that has left, as it was stored."""

    @property
    def values(self) -> Array:
        """What left."""

    @property
    def deviations(self) -> Array | None:
        """Standard deviations, if the values are estimates."""

    @property
    def samples(self) -> Array:
        """What was measured of the period up to the step."""

    @property
    def cells(self) -> Array:
        """What was measured of the features."""


class Walk(Protocol):
    """One period on its way, step by step. It may hold raw values: keep it as the data is kept."""

    priced: Priced[Any]
    period: int
    samples: Array
    """What was measured of the period up to now, one row for every node; what has not ended is not a number."""
    cells: Array

    @property
    def step(self) -> int:
        """How many steps have come."""

    @property
    def is_complete(self) -> bool:
        """Whether all steps have come."""

    @property
    def held(self) -> Any:
        """What the next period goes on from."""

    @property
    def pending(self) -> Any:
        """What a ledger must keep beside the steps that have left, as plain data; None if that is nothing."""

    def push(self, leaves: NDArray[np.int64], retry: Retry | None = None) -> Stepped:
        """Take the next step of every leaf, as integers of the grid; return what leaves."""

    def forget(self) -> None:
        """Take a step back of which nothing was drawn."""

    def finish(self, state: State) -> Parts:
        """Return the whole period, and let the state know what it has cost and what was learnt of it."""

    def to_data(self) -> dict[str, Any]:
        """Return the walk as plain data for JSON. It may hold raw values."""


class Walks(Protocol):
    """What begins and takes up the periods of a mechanism that leave step by step."""

    @property
    def repeats(self) -> bool:
        """Whether a curator's key repeats the noise of a step."""

    @property
    def repeats_alone(self) -> bool:
        """Whether it does so without a ledger."""

    def begin(self, state: State, period: int, held: Any) -> Walk:
        """Return the walk of the next period; the state pays for all of it before anything is drawn.

        Raises:
            BudgetError: What was released before leaves no budget.
        """

    def charged(self, priced: Priced[Any], period: int, state: State, held: Any) -> Walk:
        """Return the walk of a period that a ledger has charged."""

    def again(  # noqa: PLR0917
        self, priced: Priced[Any], period: int, state: State, held: Any, stored: Sequence[Left], kept: tuple[Any, Any]
    ) -> Walk:
        """Return a walk as it was, from the steps that a ledger has stored, their observations and what is pending."""

    def restored(self, data: Mapping[str, Any], state: State) -> Walk:
        """Return the walk that :meth:`Walk.to_data` gave.

        Raises:
            ParameterError: It is something else.
        """

    def held_to_data(self, held: Any) -> Any:
        """Return what the next period goes on from, as plain data."""

    def held_from_data(self, data: Any) -> Any:
        """Return what :meth:`held_to_data` gave.

        Raises:
            ParameterError: It is something else.
        """

    def held_after(self, last: Left | None, pending: Any) -> Any:
        """Return what the next period goes on from, by what a ledger has of the last step and what is pending."""

    def stepped(self, left: Left) -> Stepped:
        """Return what has left at a step that is stored."""

    def before(self, held: Any) -> dict[str, Any]:
        """Return the circumstances of a period that goes on from something, as a plan says them."""

    def after(self, walk: Walk) -> dict[str, Any] | None:
        """Return the circumstances of a period that is complete, if it may have cost less than it was charged."""


def check_mechanism(mechanism: object, emit: str | None = None) -> None:
    """Raise unless something is a mechanism, which releases as a stream or a ledger wants it.

    Raises:
        ParameterTypeError: It is no mechanism.
        ParameterError: It cannot release like this.
    """
    if not isinstance(mechanism, Mechanism):
        raise ParameterTypeError(f"mechanism is of type {type(mechanism).__name__}, but must be a mechanism: OptStream")
    if emit is None or emit in mechanism.emits:
        return
    name = type(mechanism).__name__
    if not mechanism.emits:
        raise ParameterError(f"mechanism is {name}, but must be one that streams and ledgers know how to go on with")
    usual = mechanism.emits[0]
    raise ParameterError(
        f"emit is {emit!r}, but must be {usual!r} for {name}"
        + (": release it by Stream(mechanism, ledger=ledger)" if usual == "step" else "")
    )
