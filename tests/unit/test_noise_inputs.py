"""Every input either gives noise on the grid or a typed error that names the parameter, before anything is drawn."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import hypothesis.extra.numpy as st_numpy
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

import optstream
from optstream import noise

Mechanism = Callable[..., NDArray[np.float64]]
BOTH = pytest.mark.parametrize("mechanism", [noise.laplace, noise.cube], ids=["laplace", "cube"])
GOOD: dict[str, Any] = {"sensitivity": 1.0, "epsilon": 1.0, "bounds": (0.0, 10.0)}
NAN, INF = float("nan"), float("inf")


@BOTH
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"values": np.array([])}, ValueError, "empty"),
        ({"values": np.array([1.0, NAN])}, ValueError, r"values\[1\] is NaN"),
        ({"values": np.array([INF, 1.0])}, ValueError, r"values\[0\] is inf"),
        ({"values": np.array([1, 2])}, TypeError, "values is an array of .*int64"),
        ({"values": np.array([1.0], dtype=np.float32)}, TypeError, "values is an array of .*float32"),
        ({"values": np.array([1.0], dtype=">f8")}, TypeError, "values"),
        ({"values": np.array(["a"])}, TypeError, "values"),
        ({"values": [1.0, 2.0]}, TypeError, "values is of type list"),
        ({"values": None}, TypeError, "values"),
        ({"values": np.zeros((2, 2, 2))}, ValueError, "3 dimensions"),
        ({"values": np.array(1.0)}, ValueError, "0 dimensions"),
        ({"sensitivity": 0.0}, ValueError, "sensitivity is 0.0, but must be positive"),
        ({"sensitivity": -1.0}, ValueError, "sensitivity is -1.0"),
        ({"sensitivity": NAN}, ValueError, "sensitivity is NaN"),
        ({"sensitivity": INF}, ValueError, "sensitivity is inf"),
        ({"sensitivity": 1e300, "grid": 1.0}, ValueError, "sensitivity is 1e300, but must be at most"),
        ({"sensitivity": "1"}, TypeError, "sensitivity is of type str"),
        ({"sensitivity": True}, TypeError, "sensitivity is of type bool"),
        ({"epsilon": 0}, ValueError, "epsilon is 0, but must be positive"),
        ({"epsilon": 0.0}, ValueError, "epsilon is 0.0"),
        ({"epsilon": -0.5}, ValueError, "epsilon is -0.5"),
        ({"epsilon": NAN}, ValueError, "epsilon is NaN"),
        ({"epsilon": INF}, ValueError, "epsilon is inf"),
        ({"epsilon": Decimal("NaN")}, ValueError, "epsilon is NaN"),
        ({"epsilon": Fraction(-1, 3)}, ValueError, "epsilon is -1/3"),
        ({"epsilon": 1e-18}, ValueError, "epsilon is .*, but must be at least"),
        ({"epsilon": 1e-200}, ValueError, "epsilon is 1e-200"),
        ({"epsilon": Fraction(1, 10**60)}, ValueError, "epsilon"),
        ({"epsilon": True}, TypeError, "epsilon is of type bool"),
        ({"epsilon": "1"}, TypeError, "epsilon is of type str"),
        ({"epsilon": None}, TypeError, "epsilon is of type NoneType"),
        ({"bounds": (10.0, 0.0)}, ValueError, r"bounds\[0\] is 10.0, but must be below bounds\[1\] = 0.0"),
        ({"bounds": (1.0, 1.0)}, ValueError, "must be below"),
        ({"bounds": (0.0, INF)}, ValueError, r"bounds\[1\] is inf"),
        ({"bounds": (NAN, 1.0)}, ValueError, r"bounds\[0\] is NaN"),
        ({"bounds": (0.0, 1e300)}, ValueError, r"bounds\[1\] is 1e300, but must be at most 2\^53 grid steps"),
        ({"bounds": 3.0}, TypeError, "bounds is 3.0, but must be a pair"),
        ({"bounds": (1.0, 2.0, 3.0)}, TypeError, "a pair"),
        ({"bounds": ("a", 2.0)}, TypeError, r"bounds\[0\] is of type str"),
        ({"grid": 0.3}, ValueError, "grid is 0.3, but must be a power of two"),
        ({"grid": 0.0}, ValueError, "grid is 0.0"),
        ({"grid": -1.0}, ValueError, "grid is -1.0"),
        ({"grid": NAN}, ValueError, "grid is NaN"),
        ({"grid": INF}, ValueError, "grid is inf"),
        ({"grid": 5e-324}, ValueError, "grid is 5e-324"),
        ({"grid": "fine"}, TypeError, "grid is of type str"),
    ],
    ids=str,
)
def test_bad_input_is_named(mechanism: Mechanism, change: dict[str, Any], error: type, message: str) -> None:
    arguments = {"values": np.array([1.0, 2.0]), **GOOD, **change}
    with pytest.raises(optstream.OptStreamError, match=message) as caught:
        mechanism(arguments.pop("values"), **arguments)
    assert isinstance(caught.value, error)


def test_laplace_takes_one_dimension_only() -> None:
    with pytest.raises(optstream.ParameterError, match="2 dimensions"):
        noise.laplace(np.zeros((2, 2)), **GOOD)


def test_a_block_that_is_too_long_for_its_scale_is_refused() -> None:
    with pytest.raises(optstream.ParameterError, match="length of a block is 100, but must be from 1 to 8"):
        noise.cube(np.zeros(100), sensitivity=1.0, epsilon=1.0, bounds=(0, 1), grid=1.0)
    with pytest.raises(optstream.DataError, match="empty"):
        noise.cube(np.zeros((3, 0)), **GOOD)


@BOTH
def test_every_number_type_is_a_budget(mechanism: Mechanism) -> None:
    for epsilon in (1, 0.1, np.float64(0.25), Fraction(1, 3), Decimal("0.7")):
        assert np.isfinite(mechanism(np.ones(3), **{**GOOD, "epsilon": epsilon})).all()


@BOTH
def test_input_is_left_alone_and_any_layout_is_read(mechanism: Mechanism) -> None:
    values = np.arange(20.0)
    tight: dict[str, Any] = {"sensitivity": 1.0, "epsilon": 100, "bounds": (0.0, 100.0)}
    np.testing.assert_allclose(mechanism(values[::-2], **tight), values[::-2], atol=0.5)
    np.testing.assert_array_equal(values, np.arange(20.0))
    values.flags.writeable = False
    np.testing.assert_allclose(mechanism(values, **tight), values, atol=0.5)
    columns = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    np.testing.assert_allclose(noise.cube(columns, **tight), columns, atol=0.5)


@BOTH
@settings(max_examples=300, deadline=None)
@given(
    values=st_numpy.arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False)),
    sensitivity=st.floats(1e-6, 1e6),
    epsilon=st.floats(1e-6, 100) | st.fractions(Fraction(1, 1000), 10, max_denominator=10**6),
    lower=st.floats(-1e9, 1e9),
    width=st.floats(1e-3, 1e9),
)
def test_any_good_input_gives_values_on_the_grid(
    mechanism: Mechanism,
    values: NDArray[np.float64],
    sensitivity: float,
    epsilon: float | Fraction,
    lower: float,
    width: float,
) -> None:
    grid = noise.default_grid(sensitivity)
    upper = lower + width
    if max(abs(lower), abs(upper)) / grid > 2**53 or lower >= upper:
        return
    noisy = mechanism(values, sensitivity=sensitivity, epsilon=epsilon, bounds=(lower, upper))
    assert noisy.shape == values.shape
    assert noisy.dtype == np.float64
    assert np.isfinite(noisy).all()
    assert (noisy % grid == 0).all()


@settings(max_examples=300, deadline=None)
@given(
    arguments=st.lists(st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(), min_size=4)
)
@pytest.mark.parametrize("function", [optstream._core.laplace, optstream._core.cube])
def test_nonsense_never_gets_past_a_typed_error(function: Callable[..., Any], arguments: list[Any]) -> None:
    with pytest.raises((optstream.OptStreamError, TypeError)):
        function(*arguments)


@given(st.floats(1e-200, 1e200))
def test_the_default_grid_is_the_largest_power_of_two_that_fits(sensitivity: float) -> None:
    grid = Fraction(noise.default_grid(sensitivity))
    assert grid <= Fraction(sensitivity) / 1024 < 2 * grid
    assert (grid.numerator & (grid.numerator - 1)) == 0
    assert (grid.denominator & (grid.denominator - 1)) == 0
