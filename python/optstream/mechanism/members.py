"""Plan files of a pool: several streams about the same people, with their shares of one budget.

    epsilon = 1            # of any window over all members
    w = 24
    entity = "rider"
    entities = "moving"

    [stream.trips]
    share = 2              # of epsilon, beside the shares of the others
    alpha = 2
    bounds = [0, 500]
    sample = { kind = "bucket", k = 8 }

    [stream.fares]
    share = 1
    alpha = 60
    bounds = [0, 9_000]
    sample = { kind = "bucket", k = 4 }

In place of ``share`` every member may say what its values ``typical``-ly are, and a ``weight`` if its relative error
may be larger than that of others: epsilon is then divided so that relative errors are equal, or as weighted. What
stands above the tables holds for all members.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError
from optstream.mechanism.description import as_float, check_keys, rational
from optstream.mechanism.plan import OPTIONAL, REQUIRED, build_optstream, read_content
from optstream.privacy.accounting import epsilon_of
from optstream.privacy.budget import shares, shown
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optstream.mechanism.optstream import OptStream

__all__ = ["PoolPlan", "divided", "read_pool_plan"]

COMMON = ("epsilon", "w", "neighbours", "delta", "entities", "entity")
"""What members of a pool have in common."""


@dataclass(frozen=True)
class PoolPlan:
    """Streams about the same people, described together: what each member is, and what all of them cost."""

    guarantee: Guarantee
    """What is promised of all members together; its alpha is that of no member."""
    members: Mapping[str, OptStream]

    @property
    def epsilon(self) -> Fraction:
        """What the worst window over all members truly costs."""
        return epsilon_of([cost for made in self.members.values() for cost in made.costs], self.guarantee)

    def __str__(self) -> str:
        """Return what each member costs, and what all of them cost together, in words."""
        guarantee = self.guarantee
        lines = [
            f"  {name:<17} {shown(made.steady_epsilon):>8}  one {guarantee.entity} changes a step by at most "
            f"{made.guarantee.alpha:g}; noise of {made.noise_scale:.4g}"
            for name, made in self.members.items()
        ]
        window = "window" if guarantee.neighbours == "sliding" else "period"
        return (
            f"Streams about the same people, one {guarantee.entity} in all of them:\n"
            + "\n".join(lines)
            + f"\nAny {window} of {guarantee.w} steps of all of them together costs at most epsilon = "
            f"{shown(self.epsilon)}, of {shown(guarantee.epsilon)} that was asked for."
        )

    def to_json(self) -> str:
        """Return the plan as JSON, with the statement of every member; exact rationals are strings."""
        guarantee = self.guarantee
        content = {
            "entities": guarantee.entities,
            "entity": guarantee.entity,
            "neighbours": guarantee.neighbours,
            "w": guarantee.w,
            "epsilon_requested": str(guarantee.epsilon),
            "epsilon_true": str(self.epsilon),
            "members": {name: json.loads(made.statement.to_json()) for name, made in self.members.items()},
        }
        return json.dumps(content, indent=2)


def read_pool_plan(path: str | Path) -> PoolPlan:
    """Return the members that a TOML file describes in tables ``[stream.NAME]``, with epsilon divided among them.

    Raises:
        ParameterError: The file is not TOML, describes no members, or a key is missing, unknown or out of its bound.
    """
    return pool_of(read_content(path))


def pool_of(content: Mapping[str, Any]) -> PoolPlan:
    """Return the members that plain data describes.

    >>> one = {"alpha": 1, "bounds": [0, 9], "sample": {"kind": "equal", "k": 2}}
    >>> plan = pool_of({"epsilon": 1, "w": 4, "stream": {"a": one | {"share": 1}, "b": one | {"share": 3}}})
    >>> plan.members["b"].guarantee.epsilon, plan.epsilon
    (Fraction(3, 4), Fraction(1, 1))
    """
    check_keys("plan", content, ("epsilon", "w", "stream"), tuple({*REQUIRED, *OPTIONAL}))
    tables, shared = content["stream"], {name: value for name, value in content.items() if name != "stream"}
    if not hasattr(tables, "items") or not tables:
        raise ParameterError("stream holds no table, but must hold one for every member: [stream.NAME]")
    own = tuple(name for name in (*REQUIRED, *OPTIONAL) if name not in COMMON)
    for name, table in tables.items():
        check_keys(f"stream.{name}", table, (), (*own, "share", "typical", "weight"))
    guarantee = Guarantee(
        epsilon=rational("epsilon", content["epsilon"]),
        w=content["w"],
        neighbours=content.get("neighbours", "sliding"),
        delta=rational("delta", content.get("delta", 0)),
        entities=content.get("entities", "settled"),
        entity=content.get("entity", "entity"),
    )
    parameters = {
        name: shared | {key: value for key, value in table.items() if key in own} for name, table in tables.items()
    }
    if any("typical" in table for table in tables.values()):
        typical = {name: _positive(name, "typical", table) for name, table in tables.items()}
        weights = {name: _positive(name, "weight", {"weight": 1, **table}) for name, table in tables.items()}
        made = {name: build_optstream(given) for name, given in parameters.items()}
        budgets = divided(guarantee.epsilon, made, typical, weights)
    else:
        missing = next((name for name, table in tables.items() if "share" not in table), None)
        if missing is not None:
            raise ParameterError(f"stream.{missing} has no 'share', but must have it, or all members 'typical'")
        given = [rational(f"stream.{name}.share", table["share"]) for name, table in tables.items()]
        parts = shares("share", given)
        budgets = {name: guarantee.epsilon * part for name, part in zip(tables, parts, strict=True)}
    members = {name: build_optstream(given | {"epsilon": budgets[name]}) for name, given in parameters.items()}
    return PoolPlan(guarantee, members)


def divided(
    epsilon: Fraction,
    mechanisms: Mapping[str, OptStream],
    typical: Mapping[str, float],
    weights: Mapping[str, float],
) -> dict[str, Fraction]:
    """Return budgets that add up to at most epsilon, with which noise has equal sizes beside what values typically are.

    Noise is inversely proportional to the budget, so each gets a share in proportion to its noise per unit of budget,
    divided by the typical value and by the weight: a member of weight 2 is half as precise.
    """
    needs = {
        name: Fraction(made.noise_scale) * made.guarantee.epsilon / Fraction(typical[name]) / Fraction(weights[name])
        for name, made in mechanisms.items()
    }
    total = sum(needs.values(), Fraction(0))
    # Rounded down to a few digits, so that nobody has to look at long fractions.
    return {name: epsilon * (10**6 * need // total) / 10**6 for name, need in needs.items()}


def _positive(name: str, key: str, table: Mapping[str, Any]) -> float:
    """Return a positive number of a member."""
    if key not in table:
        raise ParameterError(f"stream.{name} has no {key!r}, but must have it where other members have it")
    if "share" in table:
        raise ParameterError(f"stream.{name} has a share and {key!r}, but must have one of them")
    value = as_float(f"stream.{name}.{key}", table[key])
    if not 0 < value < float("inf"):
        raise ParameterError(f"stream.{name}.{key} is {value:g}, but must be positive and finite")
    return value
