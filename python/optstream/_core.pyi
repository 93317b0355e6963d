from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CuratorKey",
    "Filter",
    "Forest",
    "Plan",
    "Product",
    "Track",
    "above_threshold",
    "choice_hashes",
    "combined",
    "cube",
    "default_grid",
    "finish_steps",
    "gaussian",
    "laplace",
    "measure_step",
    "principal",
    "quantise",
    "sensitivity",
    "update_filters",
]

@final
class CuratorKey:
    def __new__(cls, secret: bytes) -> CuratorKey: ...
    def digest(self, context: Sequence[bytes], units: NDArray[np.int64]) -> bytes: ...
    def digest_many(
        self, streams: Sequence[bytes], periods: Sequence[int], units: NDArray[np.int64]
    ) -> NDArray[np.uint8]: ...

@final
class Filter:
    def __new__(cls, w: int, season: int, memory: bool, smooth: bool, level: tuple[float, float] | None) -> Filter: ...
    @staticmethod
    def from_bytes(data: bytes) -> Filter: ...
    def to_bytes(self) -> bytes: ...
    @property
    def measured(self) -> int: ...
    @property
    def last(self) -> int | None: ...
    @property
    def alarm(self) -> tuple[int, float] | None: ...
    @property
    def renewed(self) -> int | None: ...
    @property
    def density(self) -> float: ...
    @property
    def level(self) -> tuple[float, float] | None: ...
    @property
    def room(self) -> float: ...
    @property
    def kind(self) -> tuple[int, int, bool, bool]: ...
    def expected_error(
        self,
        cells: Sequence[Sequence[int]],
        variances: NDArray[np.float64],
        scale: float | None,
        memory: bool,
    ) -> float: ...
    def expected_step_error(
        self,
        cells: Sequence[Sequence[int]],
        variances: NDArray[np.float64],
        scale: float | None,
        memory: bool,
    ) -> float: ...
    def deviation(self, transform: NDArray[np.float64], scale: float | None) -> NDArray[np.float64]: ...
    def revised(
        self,
        history: Sequence[
            tuple[
                int,
                Sequence[Sequence[int]],
                NDArray[np.float64],
                NDArray[np.float64],
                tuple[float, float, float],
            ]
        ],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...

@final
class Plan:
    def __new__(
        cls,
        *,
        w: int,
        alpha: float,
        bounds: tuple[float, float],
        grid: float,
        sampling: Sequence[tuple[int, int, int]] | tuple[int, float, bool, tuple[Fraction, Fraction], bool],
        cost: Fraction,
        blocks: Sequence[int] | None,
        features: Sequence[tuple[Sequence[int], Fraction]],
        tree: tuple[Sequence[int | None], Sequence[float]] | None,
        streams: int = 1,
        leaves: int = 1,
        gaussian: bool = False,
    ) -> Plan: ...
    @property
    def sensitivity(self) -> int: ...
    @property
    def reach(self) -> int: ...
    @property
    def sample_scale(self) -> tuple[int, int]: ...
    @property
    def feature_scales(self) -> list[tuple[int, int]]: ...
    @property
    def selection_scales(self) -> tuple[tuple[int, int], tuple[int, int]] | None: ...
    def measure(
        self, units: NDArray[np.int64], retry: tuple[CuratorKey, Sequence[bytes]] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64]]: ...
    def measure_many(
        self,
        units: NDArray[np.int64],
        key: CuratorKey,
        streams: Sequence[bytes],
        periods: Sequence[int],
        digests: NDArray[np.uint8],
        plan: bytes,
        rest: Sequence[bytes],
        most: int | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64]]: ...
    def release(
        self, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64]]: ...

@final
class Track:
    def __new__(
        cls, known: Filter, period: int, cells: Sequence[Sequence[int]], variances: NDArray[np.float64]
    ) -> Track: ...
    def push(self, values: Sequence[float]) -> tuple[float, float]: ...

def measure_step(
    plan: Plan,
    units: NDArray[np.int64],
    pending: Sequence[int | None],
    retry: tuple[CuratorKey, Sequence[bytes]] | None = None,
) -> tuple[int | None, NDArray[np.float64], list[int], NDArray[np.float64], list[int | None]]: ...
def finish_steps(
    plan: Plan, samples: NDArray[np.float64], cells: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint64]]: ...

@final
class Forest:
    def __new__(cls, parents: Sequence[int | None], weights: Sequence[float]) -> Forest: ...
    def project(
        self,
        targets: NDArray[np.float64],
        lower: float | None = None,
        upper: float | None = None,
    ) -> NDArray[np.float64]: ...

@final
class Product:
    def __new__(
        cls,
        parents: Sequence[int | None],
        node_weights: Sequence[float],
        step_weights: Sequence[float],
        features: Sequence[tuple[Sequence[int], float]],
        time_inverse: NDArray[np.float64],
    ) -> Product: ...
    def project(
        self, steps: NDArray[np.float64], cells: NDArray[np.float64], lower: float, upper: float
    ) -> NDArray[np.float64]: ...

def choice_hashes(text: str, lengths: NDArray[np.uint64]) -> NDArray[np.uint64]: ...
def combined(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]: ...
def principal(moments: NDArray[np.float64]) -> NDArray[np.float64]: ...
def update_filters(
    filters: Sequence[Filter],
    period: int,
    cells: Sequence[Sequence[Sequence[int]]],
    values: Sequence[NDArray[np.float64]],
    variances: Sequence[NDArray[np.float64]],
) -> list[tuple[tuple[NDArray[np.float64], NDArray[np.float64]], tuple[float, float, float]]]: ...
def quantise(values: NDArray[np.float64], bounds: tuple[float, float], grid: float) -> NDArray[np.int64]: ...
def laplace(
    values: NDArray[np.float64],
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    bounds: tuple[float, float],
    grid: float | None = None,
    retry: tuple[CuratorKey, Sequence[bytes]] | None = None,
) -> NDArray[np.float64]: ...
def gaussian(
    values: NDArray[np.float64],
    sensitivity: float,
    epsilon: Fraction,
    bounds: tuple[float, float],
    grid: float | None = None,
    retry: tuple[CuratorKey, Sequence[bytes]] | None = None,
) -> NDArray[np.float64]: ...
def cube(
    values: NDArray[np.float64],
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
    bounds: tuple[float, float],
    grid: float | None = None,
    retry: tuple[CuratorKey, Sequence[bytes]] | None = None,
) -> NDArray[np.float64]: ...
def above_threshold(
    scores: NDArray[np.float64],
    threshold: float,
    sensitivity: float,
    threshold_epsilon: Fraction,
    query_epsilon: Fraction,
    max_positive: int,
    bounds: tuple[float, float],
    grid: float | None,
) -> NDArray[np.bool_]: ...
def default_grid(sensitivity: float) -> float: ...
def sensitivity(alpha: float, grid: float) -> int: ...
