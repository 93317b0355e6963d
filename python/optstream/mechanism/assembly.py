"""Releases put together from the private numbers of drawn periods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.mechanism.release import Release
from optstream.mechanism.tree_release import assemble_tree, rounded_nodes
from optstream.pipeline.sampling import BucketSampling, EqualSampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from numpy.typing import NDArray

    from optstream.mechanism.engine import Arrays
    from optstream.mechanism.optstream import OptStream
    from optstream.mechanism.release import Parts
    from optstream.privacy.statement import Statement

__all__ = ["Assembler"]


@dataclass(frozen=True, repr=False)
class Assembler:
    """What puts the releases of a mechanism together."""

    mechanism: OptStream

    def periods(
        self,
        parts: Sequence[Parts],
        restore: Callable[[NDArray[np.float64]], Any],
        made: Sequence[OptStream] | None = None,
    ) -> Any:
        """Return the release of drawn periods in the form of the data that was read.

        Args:
            parts: The periods.
            restore: Gives released numbers the form of the data.
            made: The mechanism of each period, where budgets differ; they measure alike unless there is an estimate.
        """
        if self.mechanism.hierarchy is not None:
            return assemble_tree(
                np.stack([part.values for part in parts]),
                restore,
                hierarchy=self.mechanism.hierarchy,
                features=self.mechanism.features,
                statement=self.mechanism.statement,
                noise=[one.assembler.level_noise for one in made or [self.mechanism] * len(parts)],
                deviations=None if self.mechanism.estimator is None else np.stack([part.deviations for part in parts]),
                integers=self.mechanism.integers,
            )
        if self.mechanism.estimator is not None:
            return self._release(
                np.concatenate([part.values for part in parts]),
                np.concatenate([part.cells for part in parts]),
                restore,
                None,
                _knots=np.empty((0, 0), dtype=np.int64),
                _deviations=np.concatenate([part.deviations for part in parts]),
            )
        if len(parts) == 1:
            arrays = parts[0].values, parts[0].cells, parts[0].knots
        else:
            arrays = (
                np.concatenate([part.values for part in parts]),
                np.concatenate([part.cells for part in parts]),
                np.concatenate([part.knots for part in parts]),
            )
        scales = None if made is None else np.array([mechanism.noise_scale for mechanism in made])
        return self.of_arrays(arrays, restore, scales)

    def period(
        self, parts: Parts, period: int, start: int | datetime | None = None, statement: Statement | None = None
    ) -> Any:
        """Return the release of one period of a stream: an array, or for a hierarchy an array for every node."""

        def restore(values: NDArray[np.float64]) -> Any:
            return self.named(values if self.mechanism.hierarchy is None else values.T)

        begin = period * self.mechanism.guarantee.w if start is None else start
        made = self.periods([parts], restore)
        return replace(made, period=period, start=begin, statement=statement or made.statement)

    def whole(self, rows: NDArray[np.float64]) -> NDArray[Any]:
        """Return periods, streams and steps as whole numbers, if values are."""
        if not self.mechanism.integers:
            return rows
        made = np.rint(rows) if self.mechanism.hierarchy is None else rounded_nodes(self.mechanism.hierarchy, rows)
        return made.astype(np.int64)

    def named(self, rows: NDArray[np.float64]) -> Any:
        """Return one period of a stream, given as one row for every stream: an array, or one for every node."""
        return (
            rows.ravel()
            if self.mechanism.hierarchy is None
            else dict(zip(self.mechanism.hierarchy.nodes, rows, strict=True))
        )

    def of_arrays(
        self, arrays: Arrays, restore: Callable[[NDArray[np.float64]], Any], scales: NDArray[np.float64] | None = None
    ) -> Release:
        """Return the release of a single stream without an estimate from its steps, cells and measured steps."""
        steps, cells, knots = arrays
        return self._release(
            steps,
            cells,
            restore,
            scales,
            _knots=knots,
            _blocks=self.mechanism.engine.calibration.blocks,
            _gaussian=self.mechanism.engine.calibration.gaussian,
            _buckets=self.mechanism.sample.runs(self.mechanism.guarantee.w)
            if isinstance(self.mechanism.sample, BucketSampling)
            else None,
        )

    @cached_property
    def level_noise(self) -> tuple[Release, ...]:
        """The noise of each level, as releases of zeros: what :meth:`TreeRelease.interval` takes widths from."""
        w, none = self.mechanism.guarantee.w, np.zeros((1, self.mechanism.guarantee.w))
        buckets = self.mechanism.sample.runs(w) if isinstance(self.mechanism.sample, BucketSampling) else None
        # Steps that were chosen from the data are not kept; the noise of a measured step covers those in between too.
        knots = self.mechanism.sample.steps(w) if isinstance(self.mechanism.sample, EqualSampling) else range(w)
        return tuple(
            Release(
                values=none,
                features=(),
                statement=self.mechanism.statement,
                _rows=none,
                _knots=np.array([knots], dtype=np.int64),
                _scales=np.array([level.scale]),
                _grid=self.mechanism.grid,
                _blocks=level.blocks if isinstance(self.mechanism.sample, (EqualSampling, BucketSampling)) else None,
                _buckets=buckets,
                _gaussian=level.gaussian,
            )
            for level in self.mechanism.levels
        )

    def _release(
        self,
        steps: NDArray[np.float64],
        cells: NDArray[np.float64],
        restore: Callable[[NDArray[np.float64]], Any],
        scales: NDArray[np.float64] | None,
        **how: Any,
    ) -> Release:
        ends = accumulate((feature.size for feature in self.mechanism.features), initial=0)
        if self.mechanism.integers:
            steps = np.rint(steps) + 0.0
            sums = [steps @ np.eye(feature.size)[list(feature.labels)] for feature in self.mechanism.features]
            cells = np.concatenate([*sums, np.empty((len(steps), 0))], axis=1)
        return Release(
            values=restore(steps.astype(np.int64) if self.mechanism.integers else steps),
            features=tuple(cells[:, low:high] for low, high in pairwise(ends)),
            statement=self.mechanism.statement,
            _rows=steps,
            _scales=np.full(len(steps), self.mechanism.engine.calibration.scale) if scales is None else scales,
            # What rounding does is part of what an interval covers.
            _grid=self.mechanism.grid + 0.5 * self.mechanism.integers,
            **how,
        )
