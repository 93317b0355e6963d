"""The state of mechanisms between two steps, as plain data and back.

What a stream of a mechanism knows is numbers, lists of them and small objects that hold such. It is read back into a
new stream of the same mechanism, whose own numbers say of what form each must be.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from optstream.baselines.window_budget import WindowBudget

__all__ = ["kept", "restore"]

CONSTANT = ("_mechanism", "_gains")
"""Parts of an object that are the mechanism's and public."""


def kept(thing: Any) -> Any:
    """Return what a stream knows as plain data for JSON.

    >>> kept(WindowBudget(4, w=2))
    {'_recent': [0], 'left': 4}
    """
    if thing is None or isinstance(thing, (bool, int, float)):
        return thing
    if isinstance(thing, (list, deque)):
        return [kept(entry) for entry in thing]
    return {name: kept(value) for name, value in vars(thing).items() if name not in CONSTANT}


def restore(fresh: Any, data: Any) -> None:
    """Give a new object what one of its kind knew.

    Raises:
        ValueError: That is of another form.

    >>> budget = WindowBudget(4, w=2)
    >>> restore(budget, {"_recent": [3], "left": 1})
    >>> budget.left
    1
    """
    known = {name: value for name, value in vars(fresh).items() if name not in CONSTANT}
    if not isinstance(data, dict) or data.keys() != known.keys():
        raise ValueError("the state is of another mechanism")
    total = _total(fresh)
    for name, value in known.items():
        setattr(fresh, name, _restored(value, data[name]))
    if _total(fresh) != total:
        raise ValueError("the state does not add up to the budget")


def _restored(fresh: Any, data: Any) -> Any:
    if isinstance(fresh, (list, deque)):
        if not isinstance(data, list):
            raise ValueError("the state has no list where it must")  # noqa: TRY004  (it is data, not an argument)
        if fresh and not _is_number(fresh[0]):
            if len(data) != len(fresh):
                raise ValueError("the state has another number of streams")
            for entry, content in zip(fresh, data, strict=True):
                restore(entry, content)
            return fresh
        entries = [_number(entry) for entry in data]
        return deque(entries, fresh.maxlen) if isinstance(fresh, deque) else entries
    if _is_number(fresh):
        return _number(data)
    restore(fresh, data)
    return fresh


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float))


def _number(value: Any) -> Any:
    if not _is_number(value) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("the state has no number where it must")
    return value


def _total(thing: Any) -> int | None:
    """Return what a budget is in all; no step may go on from one that has grown."""
    return thing.left + sum(thing._recent) if isinstance(thing, WindowBudget) else None  # noqa: SLF001
