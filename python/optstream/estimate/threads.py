"""Small matrices: several threads of a BLAS library take longer over them than one, and disturb each other."""

from __future__ import annotations

from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["one_thread"]

P = ParamSpec("P")
R = TypeVar("R")


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function use one thread for its linear algebra."""

    @wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
