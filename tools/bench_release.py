"""Speed of whole releases beside a straightforward numpy + cvxpy (Clarabel) implementation, and beside OpenDP noise.

10,000 periods of 48 steps in one call, with the paper's features and both samplers. The peers do the same release
period by period: floating-point or OpenDP noise, numpy interpolation, and one parametrised cvxpy problem, built once.

    python tools/bench_release.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
import opendp.prelude as dp

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Noise = Callable[[int, float], NDArray[np.float64]]

W, K, THRESHOLD = 48, 10, 1000.0
PERIODS = 10_000
FEATURES = [ops.Feature.cuts(W, 14, 24, 36), ops.Feature.total(W)]
GUARANTEE = ops.Guarantee(epsilon=1.0, w=W)


class Straightforward:
    """The paper's release written plainly, with noise from a given source."""

    def __init__(self, noise: Noise, *, adaptive: bool) -> None:
        """Build the problem once, with the private answers as its parameter."""
        self.noise, self.adaptive = noise, adaptive
        size = W + sum(feature.size for feature in FEATURES)
        self.answers = cp.Parameter(size)
        self.steps = cp.Variable(W)
        cells = [self.steps] + [
            cp.sum(self.steps[[t for t in range(W) if f.labels[t] == c]]) for f in FEATURES for c in range(f.size)
        ]
        weights = np.concatenate([np.full(W, 1 / W), *(np.full(f.size, 1 / f.size) for f in FEATURES)])
        distance = cp.multiply(np.sqrt(weights), cp.hstack(cells) - self.answers)
        self.problem = cp.Problem(cp.Minimize(cp.sum_squares(distance)), [self.steps >= 0])

    def sample(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The sparse vector technique, or equal spacing."""
        if not self.adaptive:
            return np.round(np.linspace(0, W - 1, K)).astype(np.int64)
        chosen, last = [0], 0
        rho = self.noise(1, 12.0)[0]
        for i in range(1, W - 1):
            if W - 1 - i == K - 1 - len(chosen):
                chosen.extend(range(i, W - 1))
                break
            if i == last + 1:
                continue
            width = 2 * (i - last - 1)
            score = np.abs(np.linspace(x[last], x[i], i - last + 1) - x[last : i + 1]).sum()
            if score / width + self.noise(1, 100.0)[0] >= THRESHOLD / width + rho:
                chosen.append(i)
                last = i
            if len(chosen) == K - 1:
                break
        return np.array([*chosen, W - 1])

    def release(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """One period."""
        knots = self.sample(x)
        noisy = x[knots] + self.noise(K, 54.0)
        sums = np.concatenate([np.bincount(f.labels, x) for f in FEATURES])
        self.answers.value = np.concatenate(
            [np.interp(np.arange(W), knots, noisy), sums + self.noise(sums.size, 288.0)]
        )
        self.problem.solve(solver=cp.CLARABEL)
        return np.asarray(self.steps.value)


def numpy_noise() -> Noise:
    """Floating-point Laplace noise."""
    generator = np.random.default_rng()
    return lambda n, scale: generator.laplace(0.0, scale, n)


def opendp_noise() -> Noise:
    """OpenDP's vector Laplace mechanism."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    made: dict[float, Any] = {}
    return lambda n, scale: np.array(made.setdefault(scale, dp.m.make_laplace(*space, scale=scale))([0.0] * n))


def per_period(call: Callable[[], object], periods: int, rounds: int) -> float:
    """Best time per period."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        best = min(best, (time.perf_counter() - start) / periods)
    return best


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    target = parser.parse_args().json

    generator = np.random.default_rng(1)
    loads = 5000 + 1000 * np.sin(np.arange(W) / W * 2 * np.pi) + generator.normal(0, 50, (PERIODS, W))
    figures: dict[str, dict[str, float]] = {}
    print(f"{PERIODS:,} periods of {W} steps, k = {K}, two features    µs/period   periods/s   times optstream")
    for name, sample in (("equal", ops.EqualSampling(k=K)), ("L1", ops.L1Sampling(k=K, threshold=THRESHOLD))):
        mechanism = ops.OptStream(GUARANTEE, sample=sample, features=FEATURES, bounds=(0, 20_000))
        peers = {
            "numpy + cvxpy": Straightforward(numpy_noise(), adaptive=name == "L1"),
            "OpenDP + cvxpy": Straightforward(opendp_noise(), adaptive=name == "L1"),
        }
        rows = {"optstream": per_period(lambda m=mechanism: m.release(loads), PERIODS, 5)}  # type: ignore[misc]
        for peer, made in peers.items():
            rows[peer] = per_period(lambda m=made: [m.release(x) for x in loads[:40]], 40, 3)  # type: ignore[misc]
        figures[name] = rows
        for peer, taken in rows.items():
            ratio = taken / rows["optstream"]
            print(f"  {name + ' sampling, ' + peer:<48} {taken * 1e6:>9.1f} {1 / taken:>11.0f} {ratio:>12.0f}")

    print("Largest memory of the process beyond input and output, by number of periods")
    mechanism = ops.OptStream(GUARANTEE, sample=ops.EqualSampling(k=K), features=FEATURES, bounds=(0, 20_000))
    for periods in (10_000, 100_000):
        data = np.full((periods, W), 5000.0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        released = mechanism.release(data)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        output = sum(part.nbytes for part in (released.values, *released.features, released._knots)) / 2**20  # noqa: SLF001
        print(f"  {periods:>7,} periods: grew by {grown:.0f} MiB for {output:.0f} MiB of output")

    print("L1 scores: time of one period without positive answers, growth per doubling of w")
    last = None
    for power in range(10, 18):
        w = 2**power
        long = ops.OptStream(
            ops.Guarantee(epsilon=1.0, w=w), sample=ops.L1Sampling(k=4, threshold=1e9), bounds=(0, 1000)
        )
        data = generator.integers(0, 1000, (1, w)).astype(float)
        taken = per_period(lambda m=long, x=data: m.release(x), 1, 5)  # type: ignore[misc]
        growth = "" if last is None else f"x {taken / last:.2f}"
        print(f"  w = {w:>7,}: {taken * 1e3:>9.3f} ms  {growth}")
        figures.setdefault("l1_ms_by_w", {})[str(w)] = taken * 1e3
        last = taken

    if target is not None:
        target.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
