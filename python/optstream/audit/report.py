"""What an audit found: in words, as data, as a table and as a picture."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from optstream.pictures import empty_figure

__all__ = ["Attack", "Audit"]


@dataclass(frozen=True)
class Attack:
    """What one pair of neighbours proved."""

    neighbours: str
    """What is special about the pair."""
    statistic: str
    """The event that was measured, chosen on other runs."""
    proven: float
    """A lower bound of epsilon, with the confidence of the whole audit; at least 0."""
    estimate: float
    """The observed log-ratio, without any allowance for chance; infinite if the event came on one input only."""
    trials: int
    """Runs on each of the two inputs, those that chose the event included."""


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Example:
        >>> found = Audit("laplace", 1.0, (Attack("one step", "sum at least 1", 0.97, 0.99, 1000),), 0.999)
        >>> found.verdict, found.proven
        ('consistent', 0.97)
        >>> print(found)
        Audit of laplace: consistent
          claimed epsilon  1
          proven epsilon   0.97 at least, with confidence 0.999 (97 % of the claim)
          runs             2,000
          one step  0.9700 proven, 0.9900 estimated  sum at least 1
    """

    mechanism: str
    claimed: float
    attacks: tuple[Attack, ...]
    confidence: float
    """The probability that no attack proves too much, all of them together."""
    delta: float = 0.0
    """The delta with which epsilon is claimed, and proven."""

    @property
    def proven(self) -> float:
        """The largest epsilon that any attack proves."""
        return max(attack.proven for attack in self.attacks)

    @property
    def verdict(self) -> Literal["consistent", "broken"]:
        """Whether more is proven than is claimed. Consistent does not mean private: see what was tried."""
        return "broken" if self.proven > self.claimed else "consistent"

    @property
    def runs(self) -> int:
        """How often the mechanism ran in all."""
        return 2 * sum(attack.trials for attack in self.attacks)

    def __str__(self) -> str:
        width = max(len(attack.neighbours) for attack in self.attacks)
        share = f" ({100 * self.proven / self.claimed:.0f} % of the claim)"
        lines = [
            f"Audit of {self.mechanism}: {self.verdict}",
            f"  claimed epsilon  {self.claimed:.6g}" + (f" with delta {self.delta:g}" if self.delta else ""),
            f"  proven epsilon   {self.proven:.6g} at least, with confidence {self.confidence:g}{share}",
            f"  runs             {self.runs:,}",
        ]
        lines += [
            f"  {attack.neighbours:<{width}}  {attack.proven:.4f} proven, {attack.estimate:.4f} estimated  "
            f"{attack.statistic}"
            for attack in sorted(self.attacks, key=lambda attack: -attack.proven)
        ]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return everything as JSON; an infinite estimate is null."""
        attacks = [asdict(attack) for attack in self.attacks]
        for attack in attacks:
            attack["estimate"] = attack["estimate"] if math.isfinite(attack["estimate"]) else None
        content = {
            "mechanism": self.mechanism,
            "verdict": self.verdict,
            "claimed": self.claimed,
            "delta": self.delta,
            "proven": self.proven,
            "confidence": self.confidence,
            "runs": self.runs,
            "attacks": attacks,
        }
        return json.dumps(content, allow_nan=False)

    def to_markdown(self) -> str:
        """Return a table with a row for every pair."""
        rows = [
            f"| {attack.neighbours} | {self.claimed:.4g} | {attack.proven:.4f} | {attack.estimate:.4f} | "
            f"{attack.trials:,} | {attack.statistic} |"
            for attack in self.attacks
        ]
        summary = (
            f"**{self.mechanism}**: {self.verdict}. Claimed epsilon {self.claimed:.4g}, proven {self.proven:.4f} "
            f"with confidence {self.confidence:g}, {self.runs:,} runs."
        )
        return "\n".join(
            [
                summary,
                "",
                "| neighbours | claimed | proven | estimate | runs on each | event |",
                "| --- | --: | --: | --: | --: | --- |",
                *rows,
            ]
        )

    def plot(self, path: str | Path) -> None:
        """Write a picture of claimed against proven epsilon, with a bar for every pair; needs matplotlib.

        Raises:
            OptStreamError: Matplotlib is not installed.
        """
        Path(path).write_bytes(self.picture(Path(path).suffix.lstrip(".") or "png"))

    def picture(self, kind: str = "png") -> bytes:
        """Return the picture that :meth:`plot` writes, in any format that matplotlib knows."""
        names = [attack.neighbours for attack in self.attacks]
        proven = [attack.proven for attack in self.attacks]
        estimates = [attack.estimate if math.isfinite(attack.estimate) else math.nan for attack in self.attacks]
        figure = empty_figure(kind, figsize=(9, 1.6 + 0.4 * len(names)), layout="constrained")
        axes = figure.subplots()
        colours = ["tab:red" if value > self.claimed else "tab:blue" for value in proven]
        axes.barh(
            names,
            proven,
            color=colours,
            height=0.6,
            label=f"proven, confidence {self.confidence:g}:\nonly a bar beyond the claim is a loss",
        )
        axes.plot(
            estimates,
            names,
            "o",
            color="black",
            markersize=4,
            label="estimated from few runs: chance\nputs some beyond the claim",
        )
        axes.axvline(self.claimed, color="black", linestyle="--", linewidth=1, label=f"claimed {self.claimed:.4g}")
        axes.invert_yaxis()
        axes.set(xlabel="epsilon", title=f"{self.mechanism}: {self.verdict}", xlim=(0, None))
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
        target = BytesIO()
        figure.savefig(target, format=kind, dpi=120)
        return target.getvalue()
