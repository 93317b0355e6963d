"""What a guarantee, an error and an assumption mean, in words for people who do not know differential privacy."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np

from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from fractions import Fraction

    from optstream.pipeline.hierarchy import Hierarchy
    from optstream.privacy.guarantee import Guarantee
    from optstream.report.content import Line, Names, Subject

__all__ = [
    "assumption",
    "figure",
    "limits",
    "odds",
    "off",
    "plainly",
    "promise",
    "scope",
    "span",
    "stage_name",
    "sureness",
]

WEAK = 0.95
"""How sure an onlooker may get before the promise is called weak."""
LARGEST = 500
"""An epsilon beyond which exp(epsilon) says nothing to anyone."""
SHOWN = 3
"""Names of a level that are spelt out."""
UNITS = (
    (timedelta(days=7), "week"),
    (timedelta(days=1), "day"),
    (timedelta(hours=1), "hour"),
    (timedelta(minutes=1), "minute"),
    (timedelta(seconds=1), "second"),
)


def figure(value: float) -> str:
    """Return a number with as many digits as people can use.

    >>> figure(1234.567), figure(12.3456), figure(0.01234), figure(-0.0)
    ('1,235', '12.3', '0.0123', '0')
    """
    if not math.isfinite(value):
        return "none"
    value += 0.0  # which makes -0.0 plain 0
    if abs(value) >= 100 or value == round(value):  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.3g}"


def span(w: int, step: timedelta | None) -> str:
    """Return how long a window is.

    >>> span(48, timedelta(minutes=30)), span(48, None), span(1, None), span(14, timedelta(days=1))
    ('24 hours', '48 steps in a row', '1 step', '2 weeks')
    """
    if step is None:
        return "1 step" if w == 1 else f"{w:,} steps in a row"
    length = w * step
    # A day is a word that also means a date; 24 hours in a row may begin at any time.
    if length == timedelta(days=1):
        return "24 hours"
    unit, name = next(((unit, name) for unit, name in UNITS if not length % unit), (None, ""))
    if unit is None:
        return f"{length.total_seconds():g} seconds"
    count = length // unit
    return f"{count:,} {name}{'s' * (count != 1)}"


def sureness(epsilon: Fraction) -> float:
    """Return how sure someone may become of what was as likely as not before, by what epsilon lets through.

    >>> from fractions import Fraction
    >>> round(sureness(Fraction(1)), 3), sureness(Fraction(10**9))
    (0.731, 1.0)
    """
    return 1 / (1 + math.exp(-min(float(epsilon), LARGEST)))


def odds(epsilon: Fraction) -> str:
    """Return exp(epsilon), rounded up.

    >>> from fractions import Fraction
    >>> odds(Fraction(1)), odds(Fraction(1, 10)), odds(Fraction(1000))
    ('2.72', '1.11', 'astronomically many')
    """
    if epsilon > LARGEST:
        return "astronomically many"
    factor = math.exp(float(epsilon))
    if factor >= 1000:  # noqa: PLR2004
        return f"{factor:.2g}" if factor > 1e9 else f"{math.ceil(factor):,}"  # noqa: PLR2004
    return f"{math.ceil(factor * 100) / 100:g}"


def plainly(guarantee: Guarantee, names: Names) -> str:
    """Return the promise in one sentence."""
    window = span(guarantee.w, names.step)
    when = f"during any {window}"
    if guarantee.neighbours == "aligned":
        when = f"during {window}, within one published period"
    return (
        f"Someone who watches all of this cannot tell what {names.whom(guarantee)} did {when}: what they truly did, "
        "nothing at all, or something else."
    )


def promise(guarantee: Guarantee, epsilon: Fraction, names: Names, *, several: bool = False) -> list[str]:
    """Return what is promised, paragraph by paragraph, the plainest first.

    Args:
        guarantee: The promise in numbers.
        epsilon: What the dearest stretch costs.
        names: What things are called.
        several: Whether people may be in several places, which alpha bounds together.
    """
    sure = sureness(epsilon)
    chance = f"{math.ceil(sure * 1000) / 10:g}"
    always = (
        "This holds whatever else the onlooker knows, however clever they are, and for as long as the figures are "
        f"public. It covers everything that changes {_changed(several)} by more than {_reach(guarantee, names)}."
    )
    number = (
        f"“Cannot tell” has a number. Whatever is published is at most {odds(epsilon)} times as likely with the true "
        f"data as with any other data of {names.whom(guarantee)}. So an onlooker who found a guess as likely as not "
        f"before (50 in 100) can be at most {chance} in 100 sure of it after reading everything."
    )
    said = [always, number]
    if sure >= WEAK:
        said.append("That is a weak promise: by itself it lets an onlooker become almost sure.")
    if epsilon > guarantee.epsilon:
        ratio = shown(epsilon / guarantee.epsilon)
        said.append(f"WARNING: the dearest stretch costs {ratio} times the budget that was asked for.")
    return said


def scope(text: str) -> str:
    """Return what a statement is about in plain words; one that is not known here stays as it is."""
    if not text.startswith("Holds for one call"):
        return text
    return (
        "It covers these figures on their own. If others were published apart from them, what a stretch of time that "
        "reaches into both gives away has to be added up."
    )


def limits(guarantee: Guarantee, names: Names, *, several: bool = False) -> list[str]:
    """Return what is not promised; if several, people may be in several places."""
    window = span(guarantee.w, names.step)
    across = []
    if guarantee.neighbours == "aligned":
        across = ["Stretches that begin in one published period and end in the next are not covered."]
    longer = (
        f"The promise is about one stretch of {window} at a time. What shows only over a longer time, such as a habit "
        "of months, is protected less."
    )
    all_of = "What is true of everyone is no secret: that mornings are busy can be read off, and is meant to be."
    which = (
        f"If {_reach(guarantee, names)} bounds what {names.whom(guarantee)} adds to a step, and not every change of "
        "it, the numbers are about whether they did something at all. Which of two things they did is protected half "
        "as much: twice the epsilon."
    )
    return [*across, *([which] if several else []), longer, all_of]


def _changed(several: bool) -> str:  # noqa: FBT001
    """Return what alpha bounds."""
    return "no step, over all places together," if several else "no single figure"


def _reach(guarantee: Guarantee, names: Names) -> str:
    return f"{guarantee.alpha:g}{f' ({names.unit})' if names.unit else ''}"


def off(subject: Subject, line: Line, names: Names) -> str:
    """Return how far the figures of a line are typically off."""
    half, far = float(np.nanmean(line.half)), float(np.nanmean((line.high - line.low) / 2))
    unit = f" {names.unit}" if names.unit else ""
    return (
        f"Half of the figures {_of(line, subject)}are within about {figure(half)}{unit} of "
        f"{'the truth' if subject.estimated else 'what they would be without noise'}, and 19 in 20 within about "
        f"{figure(far)}{unit}."
    )


def _of(line: Line, subject: Subject) -> str:
    return f"for {line.name} " if len(subject.lines) > 1 else ""


def stage_name(name: str, hierarchy: Hierarchy | None) -> str:
    """Return the name of a stage with the names of nodes in the place of the number of their level."""
    found = re.fullmatch(r"(.*) level (\d+)", name)
    if found is None or hierarchy is None or int(found[2]) >= hierarchy.levels:
        return name
    nodes = [hierarchy.nodes[position] for position in hierarchy.level_positions[int(found[2])]]
    rest = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    return f"{found[1]}: {', '.join(nodes[:SHOWN])}{rest}"


def assumption(text: str, guarantee: Guarantee, names: Names) -> str:
    """Return an assumption of a statement in plain words; one that is not known here stays as it is."""
    whom = names.whom(guarantee)
    entity = whom[:1].upper() + whom[1:]
    plain = {
        f"one {guarantee.entity} changes the value of any one step": f"{entity} changes "
        f"{_changed(text.endswith('together'))} by more than "
        f"{_reach(guarantee, names)}. Whoever prepares the data sees to it, for example by counting nobody twice.",
        "no period is released twice": "Nothing else is published from the same data: no second version of a period, "
        "no other table, no chart of the true figures.",
        "w, k, features": "All settings, such as the bounds, were chosen without looking at the private data"
        + (", but for what was published of it." if "released of it" in text else "."),
        f"one {guarantee.entity} may be in any leaves": f"{entity} may be counted in several places, and in others "
        "at another time.",
        f"every {guarantee.entity} belongs to one leaf": f"{entity} is counted in one place only, and "
        f"in the same one during any {span(guarantee.w, names.step)}.",
    }
    return next((words for start, words in plain.items() if text.startswith(start)), text[:1].upper() + text[1:] + ".")
