"""The estimate of a stream from noisy means: a filter with memory that learns its own scales.

The arithmetic is in the core (``rust/estimate``), in a fixed order: the same bits on every machine.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optstream import _core
from optstream.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Cells = tuple[tuple[int, ...], ...]

__all__ = ["Filter", "Measured", "revised", "update_all"]

FORMAT = 3
"""Version of the saved state."""


class Measured(NamedTuple):
    """The measurements of one period, and how they were understood."""

    period: int
    cells: Cells
    """The steps whose mean each value is."""
    values: Array
    variances: Array
    """Of the noise on the values."""
    jump: float = 0.0
    """Variance by which the level may have broken before this period."""
    excess: float = 1.0
    """Factor on the variances of what is new within this period."""
    shift: float = 0.0
    """By how much the level was moved when it broke."""


class Filter:
    """Estimate the steps of a stream, period by period, from noisy means with known variances.

    The values of period d are, at step t, ``level(d) + shape(d, t) + weekday(d mod season, t) + drift(d w + t) +
    intraday(d w + t) + white(d, t)`` with independent parts: the level is a random walk; shape and weekday are smooth
    curves that change slowly; drift and intraday are Ornstein-Uhlenbeck processes with a memory of four periods and of
    a quarter of one; white is independent from step to step. The estimate is the posterior of this model, averaged over
    several sets of amplitudes (the variances of the parts) by their marginal likelihood. Everything is learnt from the
    values given to :meth:`update`, which are private already, so nothing here costs budget. An estimate depends only on
    what was measured up to its period and never changes.

    The amplitudes are fitted to all measurements of the first weeks at periods 1, 2, 3, 5, 8, 13 and 21. Later one
    challenger for each amplitude runs beside the centre, a factor of four away; evidence fades with a half-life of 34
    periods, a challenger that leads becomes the centre, one that falls behind is replaced by its opposite. A level
    that deviates by about five standard deviations, over one to five periods, is taken to have broken and is learnt
    anew; a period that deviates otherwise is given more variance of its own. Where the last 5 to 13
    periods deviate more than they should, far or little by little, and a filter that has seen nothing else explains
    them better, everything is learnt anew. Variances are larger by what the means that
    are measured cannot know of independent steps. A level that is given with a deviation far beyond what is measured
    says nothing: the first measurements then say where it is.

    Args:
        w: Number of steps of a period.
        season: Number of periods after which weekdays repeat; 1 is no season.
        memory: Whether earlier periods inform later ones. Without, only the amplitudes are learnt.
        smooth: Whether neighbouring steps inform each other.
        level: Mean and standard deviation of the level before anything is measured, if something public is known.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> truth = 100 + 20 * np.sin(np.arange(24) / 24 * 2 * np.pi)
        >>> cells = tuple((step, step + 1) for step in range(0, 24, 2))
        >>> estimator = Filter(24)
        >>> for day in range(28):
        ...     values = truth.reshape(12, 2).mean(axis=1) + rng.laplace(0, 20, size=12)
        ...     means, variances = estimator.update(Measured(day, cells, values, np.full(12, 800.0)))
        >>> bool(np.abs(means - truth).mean() < 7)
        True
    """

    def __init__(
        self,
        w: int,
        *,
        season: int = 7,
        memory: bool = True,
        smooth: bool = True,
        level: tuple[float, float] | None = None,
    ) -> None:
        self._core = _core.Filter(w, season, memory, smooth, level)
        self.understood: Measured | None = None
        """The last measurements, with what was made of them: whether the level broke, whether the period was odd."""

    @property
    def measured(self) -> int:
        """How many periods have been measured."""
        return self._core.measured

    @property
    def alarm(self) -> tuple[int, float] | None:
        """How many periods ago measured means last deviated from what was expected, and by how much."""
        return self._core.alarm

    @property
    def renewed(self) -> int | None:
        """How many periods ago everything was learnt anew, if it ever was."""
        return self._core.renewed

    @property
    def density(self) -> float:
        """The logarithm of the density that the likeliest model gave to what was measured last."""
        return self._core.density

    @property
    def level(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the level before anything is measured, if something public is known."""
        return self._core.level

    @property
    def room(self) -> float:
        """How far the level is from the nearer end of where it may be: what means hide is at most twice as large."""
        return self._core.room

    @property
    def kind(self) -> tuple[int, int, bool, bool]:
        """What does not change: w, season, memory and smooth."""
        return self._core.kind

    @property
    def last(self) -> int | None:
        """The last period that was measured."""
        return self._core.last

    def update(self, measured: Measured) -> tuple[Array, Array]:
        """Take the noisy means of one period, and return the posterior means and variances of its steps.

        Raises:
            ParameterError: The period is not later than the last.
            DataError: A value or variance is too large to be squared, or not finite.
        """
        return update_all([self], [measured])[0]

    def expected_error(
        self, cells: Cells, variances: Array, scale: float | None = None, *, memory: bool = True
    ) -> float:
        """Return the mean absolute error that the filter expects of itself some weeks from now.

        No data is needed beyond what was learnt: the precision of a linear filter depends on what is measured and its
        variances alone. Compare candidates with it before anything is measured. Without anything learnt it stands on
        ``scale``, a guess of the standard deviation of values within a period.

        Example:
            >>> for k in (4, 12, 48):
            ...     cells = tuple(tuple(range(step, step + 48 // k)) for step in range(0, 48, 48 // k))
            ...     print(k, round(Filter(48).expected_error(cells, np.full(k, 2 * (10.0 * k) ** 2), scale=1000.0)))
            4 471
            12 215
            48 214
        """
        return self._core.expected_error(cells, np.asarray(variances, dtype=np.float64), scale, memory)

    def expected_step_error(
        self, cells: Cells, variances: Array, scale: float | None = None, *, memory: bool = True
    ) -> float:
        """Return the same of the value of a step at the moment when it has come, from what has ended by then."""
        return self._core.expected_step_error(cells, np.asarray(variances, dtype=np.float64), scale, memory)

    def track(self, period: int, cells: Cells, variances: Array) -> _core.Track:
        """Return what follows a later period step by step, from measurements that end with its steps."""
        return _core.Track(self._core, period, cells, np.asarray(variances, dtype=np.float64))

    def deviation(self, transform: Array, scale: float | None = None) -> Array:
        """Return the mean square of linear transforms of the steps of a period, over a season from now on."""
        return self._core.deviation(np.ascontiguousarray(transform, dtype=np.float64), scale)

    def __deepcopy__(self, memo: dict[int, Any]) -> Filter:
        made = Filter.from_state(self.state())
        made.understood = self.understood
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Filter.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """Return everything the filter knows as plain data, from which :meth:`from_state` makes it again bit for bit.

        >>> first = Filter(4)
        >>> _ = first.update(Measured(0, ((0, 1), (2, 3)), np.array([1.0, 3.0]), np.ones(2)))
        >>> again, measured = Filter.from_state(first.state()), Measured(1, ((0,),), np.ones(1), np.ones(1))
        >>> bool((first.update(measured)[0] == again.update(measured)[0]).all())
        True
        """
        data = base64.b64encode(self._core.to_bytes()).decode("ascii")
        return {"format": FORMAT, "measured": self.measured, "data": data}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Filter:
        """Return the filter that :meth:`state` described.

        Raises:
            ParameterError: The state was written in another format.
        """
        if state.get("format") != FORMAT:
            raise ParameterError(f"format of the state is {state.get('format')}, but must be {FORMAT}")
        made = cls.__new__(cls)
        made._core = _core.Filter.from_bytes(base64.b64decode(state["data"], validate=True))  # noqa: SLF001  (its own)
        made.understood = None
        return made


def update_all(filters: Sequence[Filter], measured: Sequence[Measured]) -> list[tuple[Array, Array]]:
    """Update the filters of several streams with what was measured of the same period, on several threads.

    The result does not depend on how many threads there are. Nothing is changed if a measurement is refused.
    """
    first = measured[0].cells
    cells = [first] if all(seen.cells is first for seen in measured) else [seen.cells for seen in measured]
    found = _core.update_filters(
        [part._core for part in filters],  # noqa: SLF001  (the wrapper's own class)
        measured[0].period,
        cells,
        [np.asarray(seen.values, dtype=np.float64) for seen in measured],
        [np.asarray(seen.variances, dtype=np.float64) for seen in measured],
    )
    for part, seen, (_, (jump, excess, shift)) in zip(filters, measured, found, strict=True):
        part.understood = seen._replace(jump=jump, excess=excess, shift=shift)
    return [moments for moments, _ in found]


def revised(learnt: Filter, measured: Sequence[Measured]) -> tuple[Array, Array]:
    """Return the means and variances of the steps of all measured periods, given all of them.

    One pass of the filter forward, with the likeliest amplitudes at the end, and one backward (Rauch, Tung and Striebel
    1965).

    Args:
        learnt: A filter that has seen them.
        measured: What was measured of each period, in their order, as the filter understood it.
    """
    history = [
        (seen.period, seen.cells, seen.values, seen.variances, (seen.jump, seen.excess, seen.shift))
        for seen in measured
    ]
    return learnt._core.revised(history)  # noqa: SLF001  (the wrapper's own class)
