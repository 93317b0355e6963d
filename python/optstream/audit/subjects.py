"""What is audited: something that can be run many times on the same input, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from optstream.audit.pairs import Pair, check_neighbours, pairs_of
from optstream.errors import ParameterError, ParameterTypeError
from optstream.estimate import Estimate
from optstream.mechanism.mechanism import Mechanism
from optstream.mechanism.optstream import OptStream
from optstream.pipeline.reconstruction import Linear
from optstream.privacy.budget import exact

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from optstream.audit.statistics import Score

    Array = NDArray[np.float64]

__all__ = ["Likelihood", "Subject", "subject_of"]

Likelihood = Callable[["NDArray[np.float64]", "NDArray[np.float64]"], "NDArray[np.float64]"]
"""Returns the log-density of each row of outputs, up to a constant, given the input of a run."""


class Subject(Protocol):
    """Something that is audited."""

    @property
    def claimed(self) -> float:
        """The epsilon that it promises."""

    @property
    def delta(self) -> float:
        """The delta that it promises it with."""

    @property
    def pairs(self) -> Sequence[Pair]:
        """The neighbours that are tried."""

    def run(self, x: Array, trials: int) -> Array:
        """Run so many times, independently, on one input; return all that leaves, one row per run."""

    def scores(self, pair: Pair) -> dict[str, Score]:
        """Return statistics that need to know how the mechanism works."""


@dataclass(frozen=True)
class Function:
    """Any callable that maps inputs, one per row, to outputs, one per row."""

    function: Callable[[Array], Array]
    claimed: float
    delta: float
    pairs: Sequence[Pair]
    likelihood: Likelihood | None

    def run(self, x: Array, trials: int) -> Array:
        """Run on as many copies of the input, in one call."""
        outputs = np.asarray(self.function(np.tile(x, (trials,) + (1,) * x.ndim)), dtype=float)
        if len(outputs) != trials:
            raise ParameterError(f"mechanism returned {len(outputs)} rows for {trials} inputs, but must return as many")
        if not np.isfinite(outputs).all():
            raise ParameterError("mechanism returned a value that is NaN or infinite, but must return finite ones")
        return outputs.reshape(trials, -1)

    def scores(self, pair: Pair) -> dict[str, Score]:
        """Return the likelihood ratio, where the density is known."""
        density = self.likelihood
        if density is None:
            return {}
        return {"likelihood ratio": lambda outputs: density(outputs, pair.x) - density(outputs, pair.other)}


@dataclass(frozen=True)
class Periods:
    """A mechanism of the package. The periods of one call have independent noise, so that a call makes many runs."""

    mechanism: OptStream
    claimed: float
    delta: float
    pairs: Sequence[Pair]

    def run(self, x: Array, trials: int) -> Array:
        """Return values and sums of features and, where the sampler chooses them, which steps were measured."""
        released = self.mechanism.release(np.tile(x, trials) if x.ndim == 1 else np.tile(x, (trials, 1)))
        parts = [np.asarray(released.values), *released.features]
        # The choice of an adaptive sampler is released: it shows in the values, and a ledger stores it.
        knots = getattr(released, "_knots", None)
        if knots is not None and len(knots) > 1:
            chosen = np.zeros((len(knots), self.mechanism.guarantee.w))
            np.put_along_axis(chosen, knots, 1.0, axis=1)
            parts.append(chosen)
        return np.concatenate([part.reshape(trials, -1) for part in parts], axis=1)

    def scores(self, pair: Pair) -> dict[str, Score]:
        """Return the likelihood ratio of Laplace noise on measured steps, where an adaptive sampler chooses them."""
        size = pair.x.size
        if pair.x.ndim > 1 or not self.mechanism.sample.selection_costs(self.mechanism.guarantee.w):
            return {}

        def masked(outputs: Array) -> Array:
            values, chosen = outputs[:, :size], outputs[:, -size:]
            return np.asarray(((np.abs(values - pair.other) - np.abs(values - pair.x)) * chosen).sum(axis=1))

        return {"likelihood ratio of samples": masked}


@dataclass(frozen=True)
class Releases:
    """Any other mechanism. Its steps depend on those before, so that every run is a call."""

    mechanism: Mechanism
    claimed: float
    delta: float
    pairs: Sequence[Pair]

    def run(self, x: Array, trials: int) -> Array:
        """Return the values of as many releases."""
        return np.stack([np.asarray(self.mechanism.release(x).values, dtype=float).ravel() for _ in range(trials)])

    def scores(self, pair: Pair) -> dict[str, Score]:  # noqa: ARG002
        """Return none: nothing is known of how it works."""
        return {}


def subject_of(  # noqa: C901  (one check for each parameter)
    mechanism: Mechanism | Callable[[Array], Array],
    *,
    claimed: float | Fraction | None,
    delta: float | Fraction | None,
    neighbours: Sequence[Pair] | None,
    likelihood: Likelihood | None,
) -> Subject:
    """Return what is audited, with its claim and the pairs that are tried."""
    given = None if neighbours is None else _pairs(neighbours)
    if claimed is not None:
        claimed = exact("claimed", claimed)
    if delta:
        _check_delta(delta)
    if likelihood is not None and not callable(likelihood):
        raise ParameterTypeError(f"likelihood is of type {type(likelihood).__name__}, but must be callable")
    if isinstance(mechanism, Mechanism):
        if likelihood is not None:
            raise ParameterError("likelihood is given, but must not be: it goes with a mechanism that is a function")
        if not isinstance(mechanism, OptStream):
            pairs = pairs_of(mechanism) if given is None else given
            for pair in pairs:
                check_neighbours(pair, mechanism)
            claim = float(mechanism.statement.epsilon if claimed is None else claimed)
            return Releases(mechanism, claim, float(mechanism.guarantee.delta if delta is None else delta), pairs)
        pairs = pairs_of(mechanism) if given is None else given
        for pair in pairs:
            check_neighbours(pair, mechanism)
        claim = float(mechanism.statement.epsilon if claimed is None else claimed)
        # An estimate remembers earlier periods, so that runs would depend on each other. It is made from what is
        # measured, which tells no less and is attacked in its place.
        if isinstance(mechanism.reconstruct, Estimate):
            mechanism = mechanism.changed(reconstruct=Linear(), retune=False)
        return Periods(mechanism, claim, float(mechanism.guarantee.delta if delta is None else delta), pairs)
    if not callable(mechanism):
        raise ParameterTypeError(
            f"mechanism is of type {type(mechanism).__name__}, but must be a mechanism or callable"
        )
    if claimed is None or given is None:
        missing = "claimed" if claimed is None else "neighbours"
        raise ParameterError(f"{missing} must be given with a mechanism that is a function: it says neither")
    return Function(mechanism, float(claimed), float(delta or 0), given, likelihood)


def _check_delta(delta: float | Fraction) -> None:
    if exact("delta", delta) >= 1:
        raise ParameterError(f"delta is {float(delta):g}, but must be less than 1")


def _pairs(neighbours: Sequence[Pair]) -> list[Pair]:
    given = list(neighbours)
    for pair in given:
        if not isinstance(pair, Pair):
            raise ParameterTypeError(f"neighbours hold {type(pair).__name__}, but must hold Pair")
    if not given:
        raise ParameterError("neighbours are empty, but must hold at least one pair")
    return given
