"""What all figures share: the data, how often to try, and how to measure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optstream.evaluate import compare
from optstream.privacy.guarantee import Guarantee
from optstream.reproduce.mechanisms import CALIBRATIONS, W, of_paper
from optstream.reproduce.tables import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optstream.evaluate import Forecast
    from optstream.reproduce.data import Folder

__all__ = ["ALPHAS", "EPSILONS", "SEASONS", "Drawn", "Setting", "Study", "settings"]

EPSILONS = (1.0, 0.1, 0.01)
ALPHAS = (10.0, 50.0, 100.0)
SEASONS = ("February", "June", "October")


@dataclass(frozen=True)
class Setting:
    """A budget and what it protects, with the words that a figure has for it."""

    epsilon: float
    alpha: float
    label: str

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for the loads: any day of half hours."""
        return Guarantee(epsilon=self.epsilon, w=W, alpha=self.alpha)


def settings(*, epsilons: Sequence[float] = (), alphas: Sequence[float] = ()) -> list[Setting]:
    """Return settings of growing difficulty: several epsilon with alpha 1, or several alpha with epsilon 1."""
    return [
        *(Setting(epsilon, 1.0, f"epsilon = {epsilon:g}") for epsilon in epsilons),
        *(Setting(1.0, alpha, f"alpha = {alpha:g}") for alpha in alphas),
    ]


@dataclass(frozen=True)
class Drawn:
    """What a figure came to: its rows of the table, and its pictures by their names, with words for who cannot see."""

    rows: list[Row]
    pictures: dict[str, tuple[Any, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A run of figures.

    Args:
        data: Where the streams are.
        trials: How often a month is released. Whole years and forecasts take longer and are tried less often.
        processes: How many processes share the trials.
        quick: Whether to leave out what takes long.
    """

    data: Folder
    trials: int
    processes: int
    quick: bool

    def fewer(self, times: int) -> int:
        """Return so many times fewer trials, but at least one."""
        return max(self.trials // times, 1)

    def measure(
        self,
        figure: str,
        choices: Sequence[Setting],
        streams: Mapping[str, Any],
        *,
        made: Callable[..., dict[str, Any]] = of_paper,
        errors: Sequence[str] = ("point",),
        trials: int | None = None,
        forecast: Forecast | None = None,
    ) -> list[Row]:
        """Return the errors of mechanisms in every setting and calibration; values below zero count as zero."""
        rows = []
        for setting in choices:
            for calibration in CALIBRATIONS:
                found = compare(
                    made(setting.guarantee, calibration),
                    streams,
                    trials=trials or self.trials,
                    processes=self.processes,
                    truncate=True,
                    forecast=forecast,
                )
                rows += [Row.of(figure, setting.alpha, one, error) for one in found for error in errors]
        return rows
