"""The plain Laplace mechanism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from optstream.baselines.sample import Sample
from optstream.mechanism.optstream import OptStream
from optstream.pipeline.sampling import EqualSampling

if TYPE_CHECKING:
    from optstream.baselines.online import Steps
    from optstream.privacy.guarantee import Guarantee

__all__ = ["Laplace"]


class Laplace(OptStream):
    """Laplace noise of scale ``w alpha / epsilon`` on every step, also called Uniform: OptStream with ``k = w``.

    **Guarantee.** A step is measured once, and a change of it by alpha costs alpha divided by the scale, which is
    ``epsilon / w``. So any ``w`` consecutive steps cost epsilon.

    Args:
        guarantee: What is promised.
        bounds: Public lower and upper bound of the values, which are clamped to them.
        calibration: Both are the same: the paper prints this scale.
        grid: Public step of the grid, a power of two. By default the largest that is at most ``alpha / 1024``.

    Example:
        >>> import numpy as np
        >>> from optstream import Guarantee
        >>> mechanism = Laplace(Guarantee(epsilon=1, w=4), bounds=(0, 100))
        >>> mechanism.release(np.full(8, 50.0)).values.shape
        (8,)
    """

    def __init__(
        self,
        guarantee: Guarantee,
        *,
        bounds: tuple[float, float],
        calibration: Literal["sound", "paper"] = "sound",
        grid: float | None = None,
    ) -> None:
        k = getattr(guarantee, "w", 1)
        super().__init__(guarantee, sample=EqualSampling(k=k), bounds=bounds, calibration=calibration, grid=grid)

    def steps(self) -> Steps:
        """Return a new stream, to which values are pushed one by one."""
        return Sample(self.guarantee, k=self.guarantee.w, bounds=self.bounds, grid=self.grid).steps()
