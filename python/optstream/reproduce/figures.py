"""The figures of the paper's evaluation, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from optstream.baselines import PeGaSus
from optstream.evaluate import Forecast, Mean, arma_forecast, point_error
from optstream.pipeline.hierarchy import Hierarchy
from optstream.privacy.budget import shown
from optstream.reproduce.drawing import NAMES, bars, forecasts, lines, overlays
from optstream.reproduce.everything import everything
from optstream.reproduce.mechanisms import BOUNDS, CALIBRATIONS, W, components, of_paper
from optstream.reproduce.moving import moving
from optstream.reproduce.study import ALPHAS, EPSILONS, SEASONS, Drawn, Setting, settings
from optstream.reproduce.tables import Row, short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from optstream.privacy.guarantee import Guarantee
    from optstream.reproduce.mechanisms import Calibration
    from optstream.reproduce.study import Study

    Array = NDArray[np.float64]

__all__ = ["FIGURES", "Figure"]

WEEKS = 28
"""Days from which a day is forecast."""
QUICK_FORECASTS = 2
FORECAST_EPSILON = 0.1
WIDE_EPSILONS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Figure:
    """A figure or table: its title, what the paper says of it, the function that makes it, and if that reads data."""

    title: str
    claim: str
    run: Callable[[Study, str], Drawn]
    reads: bool = True


def _by_epsilon(row: Row) -> str:
    return f"epsilon = {shown(row.epsilon)}"


def _by_alpha(row: Row) -> str:
    return f"alpha = {row.alpha:g}"


def _overlays(
    study: Study, name: str, choices: Sequence[Setting], made: Callable[..., dict[str, Any]] = of_paper
) -> Drawn:
    """Draw one release of January for every setting and mechanism, in both calibrations."""
    real = study.data.load.region[study.data.load.days("January")]
    rows: list[Row] = []
    pictures: dict[str, tuple[Any, str]] = {}
    for calibration in CALIBRATIONS:
        released: dict[str, dict[str, tuple[Array, str]]] = {}
        for setting in choices:
            panels = released.setdefault(setting.label, {})
            for mechanism, one in made(setting.guarantee, calibration).items():
                values = np.maximum(one.release(real).values, 0.0)
                row = _single(name, "January", setting, (mechanism, one), point=point_error(values, real))
                rows.append(row)
                panels[mechanism] = values, f"true ε {row.true_shown}, error {short(row.mean.mean)}"
        words = f"January of one region and its private versions, {NAMES[calibration]}."
        pictures[f"{name}-{calibration}"] = overlays(real, released), words
    return Drawn(rows, pictures)


def _single(figure: str, stream: str, setting: Setting, mechanism: tuple[str, Any], **error: float) -> Row:
    """Return the row of one release, from the name and value of its error."""
    (kind, value), (name, made) = *error.items(), mechanism
    return Row(
        figure=figure,
        stream=stream,
        alpha=setting.alpha,
        epsilon=setting.guarantee.epsilon,
        mechanism=name,
        calibration=made.statement.calibration,
        true_epsilon=made.statement.epsilon,
        error=kind.replace("_", " "),
        mean=Mean.of([value]),
    )


def _months(study: Study) -> dict[str, Array]:
    return {month: study.data.load.all_regions(month) for month in SEASONS}


def _january(study: Study, name: str) -> Drawn:
    return _overlays(study, name, settings(epsilons=EPSILONS))


def _l1_error(study: Study, name: str) -> Drawn:
    rows = study.measure(name, settings(epsilons=EPSILONS), _months(study))
    words = "Average L1 error of twelve regions by month, mechanism and epsilon"
    return Drawn(
        rows,
        {
            name: (bars(rows, _by_epsilon, panels=SEASONS), f"{words}, common logarithm."),
            f"{name}-plain": (bars(rows, _by_epsilon, panels=SEASONS, plain=True), f"{words}."),
        },
    )


def _hierarchy(study: Study, name: str) -> Drawn:
    load = study.data.load
    tree = Hierarchy.nested({"France": list(load.regions)})
    months = {
        month: np.stack([x[load.days(month)] for x in load.regions.values()], axis=1) for month in SEASONS
    }  # fmt: skip

    def made(guarantee: Guarantee, calibration: Calibration) -> dict[str, Any]:
        return of_paper(guarantee, calibration, hierarchy=tree)

    errors = ("level 0", "level 1", "consistency")
    rows = study.measure(name, settings(alphas=ALPHAS), months, made=made, errors=errors)
    pictures = {}
    for level, error in (("nation", "level 0"), ("regions", "level 1")):
        chosen = [row for row in rows if row.error == error]
        words = f"Average L1 error in the hierarchy, {level}, by month, mechanism and alpha, common logarithm."
        pictures[f"{name}-{level}"] = bars(chosen, _by_alpha, panels=SEASONS), words
    return Drawn(rows, pictures)


def _forecast(study: Study, name: str) -> Drawn:
    """Forecast 2 February from the four weeks before it."""
    load, setting = study.data.load, Setting(FORECAST_EPSILON, 1.0, "")
    first = load.days("February").start + W
    past, day = load.region[first - WEEKS * W : first], load.region[first : first + W]
    shown_steps = 7 * W
    real = arma_forecast(past, W)
    plain = f"error {short(point_error(real, day))}"
    rows = [_unprotected(name, "2 February", setting, point_error(real, day))]
    panels: dict[str, dict[str, tuple[Array, Array, str]]] = {}
    for calibration in tqdm(CALIBRATIONS, desc="forecasting", disable=None, leave=False):
        found = panels.setdefault(calibration, {"Real": (past[-shown_steps:], real, plain)})
        for mechanism, one in of_paper(setting.guarantee, calibration).items():
            values = np.maximum(one.release(past).values, 0.0)
            forecast = arma_forecast(values, W)
            error = point_error(forecast, day)
            row = _single(name, "2 February", setting, (mechanism, one), forecast=error)
            rows.append(row)
            found[mechanism] = values[-shown_steps:], forecast, f"true ε {row.true_shown}, error {short(error)}"
    words = "Forecasts of 2 February from real data and from releases, as printed in the paper and sound."
    return Drawn(rows, {name: (forecasts(past[-shown_steps:], day, panels), words)})


def _unprotected(figure: str, stream: str, setting: Setting, error: float) -> Row:
    """Return the row of the data itself, which nothing protects and chance does not move."""
    exact = Mean(error, error, error, 1)
    return Row(figure, stream, setting.alpha, setting.guarantee.epsilon, "Real", "none", None, "forecast", exact)


def _forecast_error(study: Study, name: str) -> Drawn:
    load, choices = study.data.load, settings(epsilons=EPSILONS)
    forecast = Forecast(WEEKS, method="conditional")
    months = {month: load.before(month, WEEKS, W) for month in SEASONS}
    if study.quick:
        months = {month: x[: (WEEKS + QUICK_FORECASTS) * W] for month, x in months.items()}
    real = {month: forecast.error(x, x, W) for month, x in months.items()}
    rows = [_unprotected(name, month, setting, error) for setting in choices for month, error in real.items()]
    rows += study.measure(name, choices, months, errors=("forecast",), trials=study.fewer(3), forecast=forecast)
    words = "Average L1 error of forecasts of the next day by month, mechanism and epsilon, common logarithm."
    return Drawn(rows, {name: (bars(rows, _by_epsilon, panels=SEASONS), words)})


def _components(study: Study, name: str) -> Drawn:
    return _overlays(study, name, settings(epsilons=EPSILONS[1:]), components)


def _components_error(study: Study, name: str) -> Drawn:
    rows = study.measure(name, settings(epsilons=EPSILONS), _months(study), made=components)
    words = "Average L1 error with some of the components of OptStream, common logarithm."
    return Drawn(rows, {name: (bars(rows, _by_epsilon, panels=SEASONS), words)})


def _alpha(study: Study, name: str) -> Drawn:
    return _overlays(study, name, settings(alphas=ALPHAS))


def _alpha_error(study: Study, name: str) -> Drawn:
    rows = study.measure(name, settings(alphas=ALPHAS), _months(study))
    words = "Average L1 error of twelve regions by month, mechanism and alpha, common logarithm."
    return Drawn(rows, {name: (bars(rows, _by_alpha, panels=SEASONS), words)})


def _with_pegasus(guarantee: Guarantee, calibration: Calibration) -> dict[str, Any]:
    found = of_paper(guarantee, calibration)
    ours = {name: mechanism for name, mechanism in found.items() if name.startswith("OptStream")}
    return {"PeGaSus": PeGaSus(guarantee, bounds=BOUNDS, calibration=calibration)} | ours


def _pegasus(study: Study, name: str) -> Drawn:
    return _overlays(study, name, settings(epsilons=EPSILONS, alphas=ALPHAS), _with_pegasus)


def _pegasus_error(study: Study, name: str) -> Drawn:
    load = study.data.load
    january = {"January": load.region[load.days("January")]}
    rows = study.measure(name, settings(epsilons=EPSILONS, alphas=ALPHAS), january, made=_with_pegasus)

    def group(row: Row) -> str:
        return f"epsilon = {shown(row.epsilon)}\nalpha = {row.alpha:g}"

    words = "Average L1 error of PeGaSus and OptStream in January, common logarithm."
    return Drawn(rows, {name: (bars(rows, group, panels=("January",)), words)})


def _samplers(study: Study, name: str) -> Drawn:
    """Compare both samplers without features, over budgets far larger than the paper's."""

    def made(guarantee: Guarantee, calibration: Calibration) -> dict[str, Any]:
        found = components(guarantee, calibration)
        return {"every step": found["P"], "L1-sampling": found["P S"], "equal spacing": found["P S, equal"]}

    load, choices = study.data.load, settings(epsilons=WIDE_EPSILONS)
    streams = {"twelve regions": load.all_regions("February"), "one region": load.region[load.days("February")]}
    rows = study.measure(name, choices, streams, made=made)
    chosen = [
        ("L1-sampling", made(one.guarantee, kind)["L1-sampling"], one) for one in choices for kind in CALIBRATIONS
    ]
    places = [
        _single(name, stream, setting, (mechanism, one), median_step=_middle(one.release(x)))
        for stream, x in streams.items()
        for mechanism, one, setting in chosen
    ]
    words = "Error of L1-sampling, equal spacing and measuring every step against epsilon, February,"
    pictures = {
        f"{name}-{stream.split()[0]}": (lines([row for row in rows if row.stream == stream]), f"{words} {stream}.")
        for stream in streams
    }
    return Drawn(rows + places, pictures)


def _middle(release: Any) -> float:
    """Return the step of a day before and after which as many steps are measured, on average."""
    return float(np.mean([np.median([cell[0] for cell in seen.cells]) for seen in release.measured()]))


FIGURES = {
    "january": Figure(
        "January, released",
        "For any epsilon the release of OptStream is closer to the data than those of Laplace and of DFT.",
        _january,
    ),
    "l1-error": Figure(
        "Average L1 error",
        "OptStream has the smallest errors in every month. L1-sampling (LS) beats equal spacing (ES), most of all with "
        "large budgets.",
        _l1_error,
    ),
    "hierarchy": Figure(
        "Hierarchical release",
        "OptStream with L1-sampling has the smallest errors on both levels, and only OptStream adds up.",
        _hierarchy,
    ),
    "forecast": Figure(
        "Forecast of one day", "A forecast from the release of OptStream is visibly the best.", _forecast
    ),
    "forecast-error": Figure(
        "Errors of forecasts",
        "OptStream has the smallest errors of all private forecasts, close to those from the data itself.",
        _forecast_error,
    ),
    "components": Figure(
        "Components of OptStream in January",
        "Optimisation (O) makes perturbation (P) a little better, sampling (S) much better, and both together shine.",
        _components,
    ),
    "components-error": Figure(
        "Errors of the components",
        "Errors fall from P to P O, to P S, to P S O.",
        _components_error,
    ),
    "alpha": Figure(
        "January for several alpha",
        "OptStream is the closest for every alpha, and Laplace keeps hardly any signal when alpha is large.",
        _alpha,
    ),
    "alpha-error": Figure(
        "Average L1 error for several alpha",
        "Errors grow with alpha, and OptStream consistently has the smallest.",
        _alpha_error,
    ),
    "pegasus": Figure(
        "PeGaSus in January",
        "OptStream is closer than PeGaSus. (The caption speaks of several epsilon, the text of several alpha; here are "
        "both.)",
        _pegasus,
    ),
    "pegasus-error": Figure("Errors of PeGaSus", "OptStream is closer than PeGaSus.", _pegasus_error),
    "samplers": Figure(
        "When L1-sampling pays",
        "The paper says that L1-sampling helps most with large budgets. Here are budgets up to a thousand times the "
        "paper's largest, without features.",
        _samplers,
    ),
    "errors": Figure(
        "All mechanisms on all streams",
        "Not in the paper: alpha 1, windows that slide, whole streams, values as they are released.",
        everything,
    ),
    "moving": Figure(
        "People who move",
        "Not in the paper: invented trips of a city by borough and zone, alpha 1, for riders who stay in one zone and "
        "for riders who move. No data is read.",
        moving,
        reads=False,
    ),
}
"""Figures and tables by name, in the order of the paper; what it does not have comes last."""
