"""Mechanisms that are known not to keep their promise. The auditor must catch every one of them.

Each is a mistake that was published or shipped somewhere, or one that this library takes pains to avoid. They use
ordinary floating-point noise, but for the ones whose mistake lies elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

import optstream as ops
from optstream import _core, noise
from optstream.audit import Pair, pairs_of, window_pairs
from optstream.privacy.gaussian import ratio_of, rho_from

Array = NDArray[np.float64]
Mechanism = ops.OptStream | Callable[[Array], Array]

GENERATOR = np.random.default_rng()
W = 4
DELTA = Fraction(1, 1000)
"""Large enough to be seen in some ten thousand runs."""


@dataclass(frozen=True)
class Broken:
    """A mechanism with the promise that it breaks."""

    name: str
    mistake: str
    mechanism: Mechanism
    claimed: float
    neighbours: list[Pair] | None = None
    trials: int = 60_000
    delta: float = 0.0


# The paper, as printed.


def printed_features() -> Broken:
    """Feature sums with noise for a sensitivity of 1, although every step of a window may change."""
    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=1, w=W),
        sample=ops.EqualSampling(k=2),
        features=[ops.Feature.total(W)],
        bounds=(0, 100),
        calibration="paper",
    )
    return Broken("feature sensitivity of 1", "the paper's scale for feature sums", mechanism, 1.0)


def printed_periods() -> Broken:
    """Epsilon for each period, although a window may meet the samples of two."""
    mechanism = ops.OptStream(
        ops.Guarantee(epsilon=2, w=9),
        sample=ops.L1Sampling(k=4, threshold=10_000.0),
        split=(1, 19),
        bounds=(0, 1_000_000),
        calibration="paper",
    )
    pairs = [pair for pair in pairs_of(mechanism) if "straddling" in pair.name]
    mistake = "adaptive samples of two periods lie in one window"
    return Broken("epsilon per period", mistake, mechanism, 2.0, pairs, trials=150_000)


# The sparse vector technique, after Lyu, Su and Li (2017), "Understanding the sparse vector technique for differential
# privacy". Scores have sensitivity 1, the threshold is given, and answers after the last one are -1.


def _answers(above: NDArray[np.bool_], most: int | None) -> Array:
    """Return answers as 1 and 0, up to the positive one that ends the run."""
    answers = above.astype(float)
    if most is not None:
        answers[np.cumsum(above, axis=1) - above >= most] = -1
    return answers


def _laplace(scale: float, *shape: int) -> Array:
    return GENERATOR.laplace(0.0, scale, shape)


def unscaled_queries(scores: Array, *, epsilon: float = 1.0, most: int = 5, threshold: float = 2.0) -> Array:
    """Query noise that does not grow with the number of positive answers (Lee and Clifton 2014; Algorithm 4)."""
    rho = _laplace(4 / epsilon, len(scores), 1)
    return _answers(scores + _laplace(4 / (3 * epsilon), *scores.shape) >= threshold + rho, most)


def noiseless_queries(scores: Array, *, epsilon: float = 1.0, threshold: float = 0.5) -> Array:
    """Noise on the threshold alone (Stoddard, Chen and Machanavajjhala 2014; Algorithm 5)."""
    return _answers(scores >= threshold + _laplace(2 / epsilon, len(scores), 1), None)


def unlimited_answers(scores: Array, *, epsilon: float = 1.0, threshold: float = 0.0) -> Array:
    """No limit of positive answers (Chen, Xiao, Zhang and Xu 2015; Algorithm 6)."""
    rho = _laplace(2 / epsilon, len(scores), 1)
    return _answers(scores + _laplace(2 / epsilon, *scores.shape) >= threshold + rho, None)


def exact_threshold(scores: Array, *, epsilon: float = 1.0, threshold: float = 3.0) -> Array:
    """A threshold without noise, so that negative answers are not free."""
    return _answers(scores + _laplace(2 / epsilon, *scores.shape) >= threshold, 1)


def _scores(up: int, down: int) -> Pair:
    name = "some scores rise, others fall" if down else "all scores rise"
    return Pair(name, np.zeros(up + down), np.array([1.0] * up + [-1.0] * down))


# The noise.


def float_laplace(x: Array) -> Array:
    """The textbook: a sum of doubles, whose last bits depend on what was added to (Mironov 2012)."""
    return x + _laplace(x.shape[1], *x.shape)


def too_little(x: Array, *, epsilon: float = 1.0) -> Array:
    """Exact noise with a scale that is 10 % too small."""
    cost = epsilon / x.shape[1] / 0.9
    return noise.laplace(x.ravel(), sensitivity=1, epsilon=cost, bounds=(0, 100)).reshape(x.shape)


def rounded_away(x: Array) -> Array:
    """Ties rounded away from zero, so that -1/2 and 1/2 are two grid steps apart; then exact noise for one."""
    units = np.sign(x) * np.floor(np.abs(x) + 0.5)
    return noise.laplace(units.ravel(), sensitivity=1, epsilon=1, bounds=(-9, 9), grid=1.0).reshape(x.shape)


def rounded_to_even(x: Array) -> Array:
    """Ties rounded to even, so that 1/2 and 3/2 are two grid steps apart; then exact noise for one."""
    return noise.laplace(np.round(x).ravel(), sensitivity=1, epsilon=1, bounds=(-9, 9), grid=1.0).reshape(x.shape)


def cube_per_period(x: Array) -> Array:
    """Cube noise with the whole of epsilon for every period, although a window may touch two."""
    return noise.cube(x.reshape(-1, 3), sensitivity=1, epsilon=1, bounds=(0, 100)).reshape(x.shape)


def surviving_generator(x: Array) -> Array:
    """Two workers that a service forked after it had made its generator: both draw the same noise."""
    generator = np.random.default_rng()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write((x[:, 1] + generator.laplace(0.0, 2.0, len(x))).tobytes())
        os._exit(0)
    os.close(writer)
    own = x[:, 0] + generator.laplace(0.0, 2.0, len(x))
    with os.fdopen(reader, "rb") as pipe:
        others = np.frombuffer(pipe.read())
    os.waitpid(child, 0)
    return np.stack([own, others], axis=1)


def repeated_key(x: Array) -> Array:
    """Keyed noise whose key forgets the data, so that a period released from corrected data has the same noise."""
    z = _laplace(2.0, len(x), 1)
    return x + z


def cube_of_settled(x: Array) -> Array:
    """A block of cube noise for each of three leaves, priced as if an entity were in one of them."""
    blocks = np.ascontiguousarray(x.reshape(-1, 3, 3).transpose(0, 2, 1)).reshape(-1, 3)
    return noise.cube(blocks, sensitivity=1, epsilon=1, bounds=(0, 100)).reshape(x.shape)


def bounded_per_period(x: Array) -> Array:
    """Where an entity is, kept in the leaf where it is most often in a period, released for windows of one step."""
    where = x.reshape(-1, 3, 2)
    often = where.sum(axis=1)
    kept = where * (np.arange(2) == often.argmax(axis=1)[:, None])[:, None]
    # Any change of one step would move two leaves by one, if it changed nothing else.
    return noise.laplace(kept.ravel(), sensitivity=2, epsilon=1, bounds=(0, 1)).reshape(x.shape)


def gaussian_for_one_step(x: Array) -> Array:
    """Deviation for the change of one step, although all of a window may change."""
    return _discrete_gaussian(x, rho_from(Fraction(1), DELTA))


def gaussian_without_conversion(x: Array) -> Array:
    """Concentrated cost taken for epsilon: rho adds up to 1 in a window."""
    return _discrete_gaussian(x, Fraction(1, x.shape[1]))


def float_gaussian(x: Array) -> Array:
    """A generator of floating-point numbers with enough of a deviation; what they round to depends on the value."""
    sigma = float(1 / ratio_of(1, rho_from(Fraction(1), DELTA) / x.shape[1]))
    return x + GENERATOR.normal(0.0, sigma, x.shape)


def _discrete_gaussian(x: Array, rho: Fraction) -> Array:
    """Exact noise of which a change of one step by 1 costs so much."""
    ratio = ratio_of(1024, rho)
    return _core.gaussian(x.ravel(), 1.0, ratio, (0.0, 100.0), 2.0**-10).reshape(x.shape)


VARIANTS = [
    Broken(
        "cube priced as settled",
        "an entity that moves changes a block of every leaf",
        cube_of_settled,
        1.0,
        [Pair("another leaf at every step", np.full(9, 50.0), np.full(9, 50.0) + np.eye(3).ravel())],
    ),
    Broken(
        "bounding per period",
        "a change at one step changes what is kept at others",
        bounded_per_period,
        1.0,
        [
            Pair(
                "the last of three steps",
                np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
                np.array([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]),
            )
        ],
    ),
    printed_features(),
    printed_periods(),
    Broken(
        "cube noise per period",
        "a window touches two blocks",
        cube_per_period,
        1.0,
        window_pairs(3, 1, bounds=(0, 100)),
    ),
    Broken("SVT, noise not scaled", "query noise ignores the count", unscaled_queries, 1.0, [_scores(10, 5)]),
    Broken(
        "SVT, exact scores",
        "no noise on queries",
        noiseless_queries,
        1.0,
        [Pair("two scores swap", np.array([0.0, 1.0]), np.array([1.0, 0.0]))],
    ),
    Broken("SVT, no limit", "any number of positive answers", unlimited_answers, 1.0, [_scores(5, 5)]),
    Broken("SVT, exact threshold", "no noise on the threshold", exact_threshold, 1.0, [_scores(30, 0)]),
    Broken("float Laplace", "noise of floating-point numbers", float_laplace, 1.0, window_pairs(2, 1, bounds=(0, 8))),
    Broken(
        "forked generator",
        "two workers draw the same noise",
        surviving_generator,
        1.0,
        [Pair("one of two steps", np.array([5.0, 5.0]), np.array([6.0, 5.0]))],
    ),
    Broken(
        "key without data",
        "corrected data gets the same noise",
        repeated_key,
        1.0,
        [Pair("one of two steps", np.array([5.0, 5.0]), np.array([6.0, 5.0]))],
    ),
    Broken(
        "half away from zero",
        "ties are two grid steps apart",
        rounded_away,
        1.0,
        window_pairs(1, 1, bounds=(-5, 5), grid=1.0, straddling=False),
    ),
    Broken(
        "half to even",
        "ties are two grid steps apart",
        rounded_to_even,
        1.0,
        window_pairs(1, 1, bounds=(0, 5), grid=1.0, straddling=False),
    ),
    Broken(
        "scale 10 % too small",
        "noise of scale 0.9 w alpha / epsilon",
        too_little,
        1.0,
        window_pairs(1, 1, bounds=(0, 100), straddling=False),
        trials=1_000_000,
    ),
    Broken(
        "Gaussian for one step",
        "sigma is for one step and not for a window",
        gaussian_for_one_step,
        1.0,
        window_pairs(16, 1, bounds=(0, 100), straddling=False),
        delta=float(DELTA),
    ),
    Broken(
        "Gaussian without conversion",
        "rho is taken for epsilon",
        gaussian_without_conversion,
        1.0,
        window_pairs(16, 1, bounds=(0, 100), straddling=False),
        delta=float(DELTA),
    ),
    Broken(
        "float Gaussian",
        "noise of floating-point numbers",
        float_gaussian,
        1.0,
        window_pairs(2, 1, bounds=(0, 8), straddling=False),
        delta=float(DELTA),
    ),
]
