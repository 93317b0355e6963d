"""Panels: several streams of one guarantee that add up to nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optstream.errors import ParameterError, ParameterTypeError
from optstream.pipeline.hierarchy import Hierarchy

__all__ = ["Panel"]


class Panel(Hierarchy):
    """Several streams that are released together without a tree above them: every entity belongs to one of them.

    Each stream is released with the whole budget, since an entity changes one of them alone. What an
    :class:`Estimate` learns of one stream it uses for the others where they move together. A panel is given in place of
    a hierarchy; data comes as a mapping, a frame or an array with a column for every stream, and leaves in that form.

    Args:
        streams: The names of the streams.

    Example:
        >>> import numpy as np
        >>> import optstream as ops
        >>> mechanism = ops.OptStream(
        ...     ops.Guarantee(epsilon=1, w=4),
        ...     sample=ops.BucketSampling(2),
        ...     reconstruct=ops.Estimate(),
        ...     hierarchy=ops.Panel(["north", "south"]),
        ...     bounds=(0, 99),
        ... )
        >>> release = mechanism.release({"north": np.full(8, 50.0), "south": np.full(8, 20.0)})
        >>> sorted(release.values), release.values["north"].shape
        (['north', 'south'], (8,))
    """

    def __init__(self, streams: Iterable[str]) -> None:
        if isinstance(streams, (str, Mapping)) or not isinstance(streams, Iterable):
            raise ParameterTypeError(f"streams are of type {type(streams).__name__}, but must be a list of names")
        names = tuple(streams)
        for name in names:
            if not isinstance(name, str):
                raise ParameterTypeError(f"streams hold a name of type {type(name).__name__}, but must hold str")
        if not names:
            raise ParameterError("streams are empty, but must be at least one")
        for place, name in enumerate(names):
            if name in names[:place]:
                raise ParameterError(f"streams hold {name!r} twice, but names must be unique")
        object.__setattr__(self, "nodes", names)
        object.__setattr__(self, "parents", (None,) * len(names))

    def __repr__(self) -> str:
        return f"Panel(streams={len(self.nodes)})"
