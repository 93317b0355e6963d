"""Pictures of releases and of errors."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.pictures import empty_figure
from optstream.reproduce.mechanisms import CALIBRATIONS, W

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from optstream.reproduce.tables import Row

    Array = NDArray[np.float64]

__all__ = ["NAMES", "bars", "dots", "forecasts", "levels", "lines", "overlays"]

NAMES = {"sound": "sound calibration", "paper": "as printed in the paper"}
COLOURS = {
    "Laplace": "#999999",
    "DFT": "#56b4e9",
    "PeGaSus": "#cc79a7",
    "OptStream ES": "#e69f00",
    "OptStream LS": "#d55e00",
    "Real": "#000000",
    "P": "#999999",
    "P O": "#cc79a7",
    "P S": "#f0b183",
    "P S O": "#d55e00",
    "P S, equal": "#f6d58a",
    "P S O, equal": "#e69f00",
}
"""Colours that are told apart with any eyes (Okabe and Ito), the same for a mechanism in every figure."""
RED = "#b00020"
GREY = "#bbbbbb"


def overlays(
    real: Array, released: Mapping[str, Mapping[str, tuple[Array, str]]], *, names: Mapping[str, str] | None = None
) -> Any:
    """Draw releases of a series over it: a row for every setting, a column for every mechanism.

    Args:
        real: The series.
        released: For every setting and mechanism what was released and a note.
        names: What to call the mechanisms, if not by their keys.
    """
    columns = list(next(iter(released.values())))
    size = (3.1 * (1 + len(columns)), 1.9 * len(released) + 0.3)
    figure = empty_figure("png", figsize=size, layout="constrained")
    grid = figure.subplots(len(released), 1 + len(columns), sharex=True, squeeze=False)
    days = np.arange(real.size) / W + 1
    for (setting, by_mechanism), row in zip(released.items(), grid, strict=True):
        row[0].plot(days, real, color="black", linewidth=0.6)
        row[0].set_ylabel(setting)
        for axes, mechanism in zip(row[1:], columns, strict=True):
            values, note = by_mechanism[mechanism]
            axes.plot(days, values, color=COLOURS.get(mechanism, "#d55e00"), linewidth=0.6)
            axes.plot(days, real, color="black", linewidth=0.4, alpha=0.55)
            axes.set_title(note, fontsize="small", loc="left")
        for axes in row:
            axes.set_ylim(0, 1.6 * real.max())
            axes.tick_params(labelsize="x-small")
    for axes, name in zip(grid[0], ["Real", *columns], strict=True):
        title = (names or {}).get(name, name)
        below = axes.get_title(loc="left")
        axes.set_title(f"{title}\n{below}" if below else title, fontsize="small", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("day", fontsize="small")
    return figure


def bars(rows: Sequence[Row], groups: Callable[[Row], str], *, panels: Sequence[str], plain: bool = False) -> Any:
    """Draw errors as bars with the true epsilon beside each: a row for each calibration, a column for each stream.

    Args:
        rows: What was measured.
        groups: The words for the setting of a row.
        panels: The streams, from left to right.
        plain: Whether to draw the errors themselves, not their common logarithms.
    """
    figure = empty_figure("png", figsize=(5.2 * max(len(panels), 2), 6.4), layout="constrained")
    grid = figure.subplots(2, len(panels), sharey="row" if plain else True, squeeze=False)
    for (line, calibration), (column, panel) in product(enumerate(CALIBRATIONS), enumerate(panels)):
        chosen = [row for row in rows if row.stream == panel and row.calibration in {calibration, "none"}]
        _panel(grid[line][column], chosen, groups, plain=plain)
        grid[line][column].set_title(f"{panel}, {NAMES[calibration]}", fontsize="medium")
    for axes in grid[:, 0]:
        axes.set_ylabel("mean absolute error" if plain else "log₁₀ of the mean absolute error")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _panel(axes: Any, rows: Sequence[Row], groups: Callable[[Row], str], *, plain: bool) -> None:
    places = {group: place for place, group in enumerate(dict.fromkeys(groups(row) for row in rows))}
    mechanisms = list(dict.fromkeys(row.mechanism for row in rows))
    width = 0.86 / max(len(mechanisms), 1)
    heights = [row.mean.mean if plain else row.mean.log10 for row in rows]
    for index, mechanism in enumerate(mechanisms):
        own = [(row, height) for row, height in zip(rows, heights, strict=True) if row.mechanism == mechanism]
        xs = [places[groups(row)] + (index - (len(mechanisms) - 1) / 2) * width for row, _ in own]
        axes.bar(xs, [height for _, height in own], width * 0.92, color=COLOURS.get(mechanism), label=mechanism)
        for x, (row, height) in zip(xs, own, strict=True):
            broken = row.true_epsilon is not None and row.true_epsilon > row.epsilon
            note = "ε ∞" if row.true_epsilon is None else f"ε {float(row.true_epsilon):.3g}"
            axes.annotate(
                note, (x, height), (0, 2), textcoords="offset points", rotation=90, ha="center", va="bottom",
                fontsize=7, color=RED if broken else "#333333",
            )  # fmt: skip
    axes.set_xticks(list(places.values()), list(places))
    axes.set_ylim(0, 1.22 * max(heights, default=1.0))
    axes.spines[["top", "right"]].set_visible(False)


def forecasts(past: Array, day: Array, panels: Mapping[str, Mapping[str, tuple[Array, Array, str]]]) -> Any:
    """Draw forecasts of a day from what was released before it: a row for each calibration.

    Args:
        past: The last days before it, as they were.
        day: The day itself.
        panels: For every calibration and mechanism what was released of the past, the forecast, and a note.
    """
    columns = list(next(iter(panels.values())))
    size = (3.1 * len(columns), 2.3 * len(panels) + 0.2)
    figure = empty_figure("png", figsize=size, layout="constrained")
    grid = figure.subplots(len(panels), len(columns), sharex=True, sharey=True, squeeze=False)
    before, after = np.arange(-past.size, 0) / W, np.arange(day.size) / W
    for (calibration, by_mechanism), row in zip(panels.items(), grid, strict=True):
        row[0].set_ylabel(f"load (MW), {calibration}", fontsize="small")
        for axes, mechanism in zip(row, columns, strict=True):
            released, forecast, note = by_mechanism[mechanism]
            axes.plot(before, released, color="#d55e00", linestyle=":", linewidth=0.8)
            axes.plot(before, past, color="black", linewidth=0.8)
            axes.plot(after, day, color=GREY, linewidth=1.4)
            axes.plot(after, forecast, color="#d55e00", linewidth=1.6)
            axes.set_title(f"{mechanism}\n{note}", fontsize="small", loc="left")
            axes.set_ylim(0, 1.6 * past.max())
    for axes in grid[-1]:
        axes.set_xlabel("days from the beginning of the forecast", fontsize="small")
    return figure


def lines(rows: Sequence[Row]) -> Any:
    """Draw errors against epsilon on logarithmic axes: a panel for each calibration, a line for each mechanism."""
    figure = empty_figure("png", figsize=(10, 4), layout="constrained")
    for axes, calibration in zip(figure.subplots(1, 2, sharey=True), CALIBRATIONS, strict=True):
        chosen = [row for row in rows if row.calibration == calibration]
        for mechanism in dict.fromkeys(row.mechanism for row in chosen):
            own = [row for row in chosen if row.mechanism == mechanism]
            axes.plot(
                [float(row.epsilon) for row in own],
                [row.mean.mean for row in own],
                marker="o",
                label=f"{mechanism}, costs {float((own[0].true_epsilon or 0) / own[0].epsilon):.3g} ε",
            )
        axes.set(xscale="log", yscale="log", xlabel="ε that was asked for", title=NAMES[calibration])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.get_axes()[0].set_ylabel("mean absolute error")
    return figure


def levels(rows: Sequence[Row], names: Sequence[str]) -> Any:
    """Draw errors on the levels of a hierarchy: a panel for each epsilon, a line for each mechanism.

    Args:
        rows: What was measured; a mechanism is called by what it does and, after a comma, whom it is made for.
        names: What to call the levels, from the root down.
    """
    budgets = list(dict.fromkeys(row.epsilon for row in rows))
    figure = empty_figure("png", figsize=(4.2 * len(budgets), 4), layout="constrained")
    for axes, epsilon in zip(figure.subplots(1, len(budgets), squeeze=False)[0], budgets, strict=True):
        chosen = [row for row in rows if row.epsilon == epsilon]
        kinds = dict.fromkeys(row.mechanism.partition(",")[0] for row in chosen)
        colours = dict(zip(kinds, ("#999999", "#0072b2", "#d55e00"), strict=True))
        for mechanism in dict.fromkeys(row.mechanism for row in chosen):
            kind, _, entities = mechanism.partition(", ")
            heights = [row.mean.mean for row in chosen if row.mechanism == mechanism]
            style = {"settled": "--", "moving": "-"}[entities]
            axes.plot(names, heights, style, marker="o", color=colours[kind], label=mechanism)
        axes.set(yscale="log", title=f"epsilon = {float(epsilon):g}")
        axes.grid(axis="y", alpha=0.3)
    axes = figure.get_axes()[0]
    axes.set_ylabel("mean absolute error")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    return figure


def dots(ratios: Mapping[float, Mapping[str, float]]) -> Any:
    """Draw how many times the error of the plain Laplace mechanism every mechanism has, for every epsilon."""
    names = list(next(iter(ratios.values())))
    figure = empty_figure("png", figsize=(9, 1.2 + 0.28 * len(names)), layout="constrained")
    axes = figure.subplots()
    for (epsilon, found), mark in zip(ratios.items(), "osD", strict=True):
        axes.plot([found[name] for name in names], range(len(names)), mark, label=f"epsilon = {epsilon:g}")
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xscale="log", xlabel="error, as a multiple of the plain Laplace mechanism's (geometric mean over streams)")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper right")
    return figure
