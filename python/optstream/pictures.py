"""Pictures, where matplotlib is installed."""

from __future__ import annotations

from typing import Any

from optstream.errors import OptStreamError, ParameterError

__all__ = ["empty_figure"]


def empty_figure(kind: str, **options: Any) -> Any:
    """Return a figure of matplotlib that can be written in a format, such as png.

    Raises:
        OptStreamError: Matplotlib is not installed.
        ParameterError: It does not know the format.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  (needed for pictures only)
    except ImportError:
        raise OptStreamError("a picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(**options)
    if kind not in figure.canvas.get_supported_filetypes():
        raise ParameterError(f"a picture cannot be written as {kind!r}, but can as png, pdf or svg")
    return figure
