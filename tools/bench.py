"""Speed of the noise beside numpy, OpenDP and diffprivlib, in one run on one core: a table, and JSON on request.

Peers are measured in turn with us, several times over, and the best time of each counts: the ratios then hardly depend
on what else the machine is doing.

    python tools/bench.py [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffprivlib
import numpy as np
import opendp.prelude as dp

from optstream import noise

if TYPE_CHECKING:
    from collections.abc import Callable

MILLION = 1_000_000
ROUNDS = 9
BOUNDS = (0.0, 100.0)


def seconds(calls: dict[str, tuple[Callable[[], Any], int]]) -> dict[str, float]:
    """Best time per call, the calls taking turns; each comes with how often to repeat it per turn."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, (call, repeats) in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeats)
    return best


def opendp_laplace(n: int) -> Callable[[], Any]:
    """OpenDP's vector Laplace mechanism on n floats."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float)
    measurement = dp.m.make_laplace(*space, scale=1.0)
    values = [50.0] * n
    return lambda: measurement(values)


def opendp_gaussian(n: int) -> Callable[[], Any]:
    """OpenDP's vector Gaussian mechanism on n floats."""
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, scale=1.0)
    values = [50.0] * n
    return lambda: measurement(values)


def diffprivlib_laplace(n: int) -> Callable[[], Any]:
    """Diffprivlib's Laplace mechanism, which takes one value at a time."""
    mechanism = diffprivlib.mechanisms.Laplace(epsilon=1.0, sensitivity=1.0)
    return lambda: [mechanism.randomise(50.0) for _ in range(n)]


def main() -> None:
    """Measure, print the table, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    target = parser.parse_args().json
    # One core for everyone.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    generator = np.random.Generator(np.random.PCG64())
    large, small = np.full(MILLION, 50.0), np.full(48, 50.0)
    blocks = np.full((MILLION // 48, 48), 50.0)
    options: dict[str, Any] = {"sensitivity": 1.0, "epsilon": 1.0, "bounds": BOUNDS}
    scales: dict[str, int | Fraction] = {
        "1": 1,
        "3/2": Fraction(3, 2),
        "2": 2,
        "10": 10,
        "1000": 1000,
        "2^20+7": 2**20 + 7,
        "2^30": 2**30,
        "2^40": 2**40,
    }

    def at_scale(scale: int | Fraction) -> Callable[[], Any]:
        epsilon = 1 / Fraction(scale)
        return lambda: noise.laplace(large, sensitivity=1.0, epsilon=epsilon, bounds=BOUNDS, grid=1.0)

    many = seconds(
        {
            "laplace": (lambda: noise.laplace(large, **options), 1),
            "numpy": (lambda: large + generator.laplace(0.0, 1.0, MILLION), 1),
            "cube": (lambda: noise.cube(blocks, **options), 1),
            "opendp": (opendp_laplace(10_000), 1),
            "gaussian": (lambda: noise.gaussian(large, **options, delta=1e-6), 1),
            "numpy normal": (lambda: large + generator.normal(0.0, 1.0, MILLION), 1),
            "opendp gaussian": (opendp_gaussian(10_000), 1),
            "diffprivlib": (diffprivlib_laplace(2_000), 1),
            **{f"scale {name}": (at_scale(scale), 1) for name, scale in scales.items()},
        }
    )
    sizes = {"opendp": 10_000, "opendp gaussian": 10_000, "diffprivlib": 2_000, "cube": blocks.size}
    per_value = {name: time / sizes.get(name, MILLION) * 1e9 for name, time in many.items()}
    few = seconds(
        {
            "laplace": (lambda: noise.laplace(small, **options), 5_000),
            "numpy": (lambda: small + generator.laplace(0.0, 1.0, 48), 5_000),
            "opendp": (opendp_laplace(48), 20),
        }
    )

    print("1,000,000 values, one thread           ns/value   relative to optstream laplace")
    for name in ("laplace", "cube", "numpy", "opendp", "diffprivlib", "gaussian", "numpy normal", "opendp gaussian"):
        print(f"  {name:<34} {per_value[name]:>10.1f}   {per_value[name] / per_value['laplace']:>10.2f}")
    compared = {name: per_value[name] / per_value["gaussian"] for name in ("numpy normal", "opendp gaussian")}
    print("Gaussian noise: " + ", ".join(f"{name} takes {ratio:.2f} times as long" for name, ratio in compared.items()))
    print("48 values, one call                     µs/call")
    for name, time_taken in few.items():
        print(f"  {name:<34} {time_taken * 1e6:>10.2f}   {time_taken / few['laplace']:>10.2f}")
    print("1,000,000 values by scale              ns/value   relative to the median")
    flat = {name: per_value[f"scale {name}"] for name in scales}
    median = float(np.median(list(flat.values())))
    for name, value in flat.items():
        print(f"  scale {name:<28} {value:>10.1f}   {value / median:>10.2f}")

    if target is not None:
        target.write_text(
            json.dumps({"ns_per_value": per_value, "us_per_call_of_48": {k: v * 1e6 for k, v in few.items()}}, indent=2)
        )


if __name__ == "__main__":
    main()
