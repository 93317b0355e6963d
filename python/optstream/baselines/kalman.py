"""A filter for a value that wanders, measured now and then with known noise."""

from __future__ import annotations

__all__ = ["Kalman"]

MEMORY = 0.99
"""How much of what was learnt of the wandering is kept from one measurement to the next."""


class Kalman:
    """The Kalman filter of a random walk. It reads released values only.

    Args:
        process_variance: How far the value wanders in one step, as a variance; None learns it from how far
            measurements are from what was expected, beyond what their noise explains.

    Example:
        >>> walk = Kalman(process_variance=1.0)
        >>> walk.correct(10.0, noise_variance=1.0)
        >>> walk.predict()
        >>> walk.correct(13.0, noise_variance=2.0)
        >>> walk.estimate
        11.5
    """

    def __init__(self, process_variance: float | None = None) -> None:
        self._process = process_variance
        self._moved, self._steps = 0.0, 0.0
        self._since = 0
        self._variance: float | None = None
        self.estimate = 0.0
        """The value, from all measurements so far."""

    @property
    def wandering(self) -> float:
        """How far the value is believed to wander in one step, as a variance."""
        if self._process is not None:
            return self._process
        return max(self._moved, 0.0) / self._steps if self._steps else 0.0

    def predict(self) -> None:
        """Go one step further, during which the value may wander."""
        self._since += 1

    def correct(self, measured: float, noise_variance: float) -> None:
        """Take a measurement of the value."""
        if self._variance is None:
            self.estimate, self._variance = measured, noise_variance
        else:
            surprise = measured - self.estimate
            # The noise, what was not known before and the wandering since make up the surprise. The more of the first
            # two there is, the less the surprise says of the third.
            known = noise_variance + self._variance
            self._moved = MEMORY * self._moved + (surprise**2 - known) / known**2
            self._steps = MEMORY * self._steps + max(self._since, 1) / known**2
            prior = self._variance + self._since * self.wandering
            gain = prior / (prior + noise_variance)
            self.estimate += gain * surprise
            self._variance = (1 - gain) * prior
        self._since = 0
