from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CuratorKey", "cube", "default_grid", "laplace"]

@final
class CuratorKey:
    def __new__(cls, secret: bytes) -> CuratorKey: ...

def laplace(
    values: NDArray[np.float64],
    sensitivity: float,
    epsilon: float | Fraction | Decimal,
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
def default_grid(sensitivity: float) -> float: ...
