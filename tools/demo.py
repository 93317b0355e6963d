"""Release a synthetic year of half-hourly load; write the private series, the statement and a plot to build/demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np

import optstream as ops

if TYPE_CHECKING:
    from numpy.typing import NDArray

mpl.use("Agg")
from matplotlib import pyplot as plt

W = 48
OUT = Path("build/demo")


def synthetic_year() -> NDArray[np.float64]:
    """Return half-hourly loads in MW with a day, a week, a winter and some weather; the same in every run."""
    generator = np.random.default_rng(2016)
    step = np.arange(365 * W)
    day, hour = step // W, (step % W) / 2
    shape = 700 * np.exp(-(((hour - 9) / 3) ** 2)) + 1000 * np.exp(-(((hour - 19) / 2.5) ** 2))
    winter = 1500 * np.cos(2 * np.pi * day / 365)
    weekend = -600 * (day % 7 >= 5)
    weather = np.repeat(np.convolve(generator.normal(0, 250, 365 + 4), np.ones(5) / 5, mode="valid"), W)
    return np.asarray(np.round(5500 + shape + winter + weekend + weather + generator.normal(0, 40, step.size)))


def main() -> None:
    """Release, write and say where."""
    loads = synthetic_year()
    mechanism = ops.OptStream.auto(ops.Guarantee(epsilon=1.0, w=W, alpha=10.0), bounds=(0, 20_000))
    release = mechanism.release(loads)
    low, high = (end.ravel() for end in release.interval(0.9))

    OUT.mkdir(parents=True, exist_ok=True)
    times = np.datetime64("2016-01-01T00:00") + np.arange(loads.size) * np.timedelta64(30, "m")
    rows = (f"{time},{value:.3f}\n" for time, value in zip(times, release.values, strict=True))
    (OUT / "private.csv").write_text("timestamp,load\n" + "".join(rows))
    (OUT / "statement.txt").write_text(f"{release.statement}\n")
    (OUT / "statement.json").write_text(release.statement.to_json() + "\n")

    figure, (year, week) = plt.subplots(2, 1, figsize=(11, 7), layout="constrained")
    days = loads.reshape(-1, W).mean(axis=1), release.values.reshape(-1, W).mean(axis=1)
    year.plot(times[::W], days[0], color="black", linewidth=1, label="real")
    year.plot(times[::W], days[1], color="tab:red", linewidth=1, alpha=0.8, label="private")
    year.set(title="Daily means of a synthetic year", ylabel="MW")
    first = slice(0, 7 * W)
    week.fill_between(times[first], low[first], high[first], color="tab:red", alpha=0.2, label="90 % interval")
    week.plot(times[first], loads[first], color="black", linewidth=1, label="real")
    week.plot(times[first], release.values[first], color="tab:red", linewidth=1, label="private")
    error = np.abs(release.values - loads).mean()
    week.set(title=f"First week: epsilon 1, alpha 10 MW, mean absolute error {error:.0f} MW", ylabel="MW")
    for axes in (year, week):
        axes.legend(loc="upper right")
    figure.savefig(OUT / "release.png", dpi=120)

    print(release.statement)
    print(f"\nMean absolute error {error:.0f} MW, {100 * error / loads.mean():.1f} % of the mean load.")
    print(f"Wrote private.csv, statement.txt, statement.json and release.png to {OUT}")


if __name__ == "__main__":
    main()
