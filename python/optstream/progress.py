"""A bar that shows how far long work has come, where somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tqdm.auto import tqdm

__all__ = ["progress"]

Item = TypeVar("Item")


def progress(work: Iterable[Item] | None = None, **options: Any) -> tqdm[Item]:
    """Return what yields the items of some work and shows a bar meanwhile, on a terminal alone.

    >>> list(progress([1, 2], desc="counting"))
    [1, 2]
    """
    from tqdm.auto import tqdm  # noqa: PLC0415  (loads as long as numpy)

    return tqdm(work, disable=None, leave=False, **options)
