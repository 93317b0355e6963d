"""Which doubles can appear does not depend on the input, so looking at their last bits tells nothing.

Mironov (2012) breaks Laplace noise that is computed in floating point: the set of doubles that ``x + noise`` can take
depends on x. The attack below distinguishes two inputs by the finest bit that their outputs use. It must succeed on the
textbook mechanism, or it would prove nothing about ours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from optstream import noise

N = 20_000
Mechanism = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def finest_bits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight of the lowest set bit of each value near zero, as a power of two."""
    near = values[(np.abs(values) < 0.25) & (values != 0)]
    mantissa, exponent = np.frexp(near)
    integer = (mantissa * 2.0**53).astype(np.int64)
    lowest = integer & -integer
    return np.asarray(np.log2(lowest.astype(float)) + exponent - 53)


def attack_succeeds(mechanism: Mechanism) -> bool:
    """Whether outputs near zero use finer bits for one of two inputs than for the other."""
    low, high = (finest_bits(mechanism(np.full(N, x))).min() for x in (0.0, 1.0))
    return bool(low != high)


def test_the_attack_breaks_floating_point_laplace_noise() -> None:
    generator = np.random.default_rng(1)
    assert attack_succeeds(lambda values: values + generator.laplace(0, 1.0, values.size))


def test_the_attack_fails_on_exact_noise() -> None:
    bounds = (0.0, 3.0)
    assert not attack_succeeds(lambda values: noise.laplace(values, sensitivity=1, epsilon=1, bounds=bounds))
    assert not attack_succeeds(
        lambda values: noise.cube(values.reshape(-1, 2), sensitivity=1, epsilon=1, bounds=bounds).ravel()
    )


def test_every_output_is_a_multiple_of_the_grid_whatever_the_input() -> None:
    grid = noise.default_grid(1.0)
    for values in (np.zeros(N), np.full(N, np.pi), np.linspace(0, 3, N), np.full(N, 1e-300)):
        noisy = noise.laplace(values, sensitivity=1, epsilon=1, bounds=(0.0, 3.0))
        np.testing.assert_array_equal(noisy % grid, 0)
        # Odd and even multiples alike: no part of the grid is out of reach.
        assert 0.45 < np.mean(noisy / grid % 2) < 0.55
