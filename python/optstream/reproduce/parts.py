"""Figures that are ready, kept until a run is complete, so that one that was interrupted goes on from them."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import asdict, dataclass
from fractions import Fraction
from hashlib import sha256
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from optstream.evaluate import Mean
from optstream.reproduce.tables import Row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from optstream.reproduce.study import Study

__all__ = ["Part", "Parts"]


@dataclass(frozen=True)
class Part:
    """A figure that is ready: its rows of the table, and its pictures as PNG and SVG with words for who cannot see."""

    rows: tuple[Row, ...]
    pictures: Mapping[str, tuple[bytes, bytes, str]]

    def to_json(self) -> str:
        """Return the part as text."""
        pictures = {
            name: [base64.b64encode(png).decode(), base64.b64encode(svg).decode(), words]
            for name, (png, svg, words) in self.pictures.items()
        }
        return json.dumps({"rows": [asdict(row) for row in self.rows], "pictures": pictures}, default=str)

    @classmethod
    def from_json(cls, text: str) -> Part:
        """Return the part that :meth:`to_json` gave."""
        content = json.loads(text)
        pictures = {
            name: (base64.b64decode(png), base64.b64decode(svg), words)
            for name, (png, svg, words) in content["pictures"].items()
        }
        return cls(tuple(_row(row) for row in content["rows"]), pictures)


def _row(given: dict[str, Any]) -> Row:
    true = given["true_epsilon"]
    changed = {
        "epsilon": Fraction(given["epsilon"]),
        "true_epsilon": None if true is None else Fraction(true),
        "mean": Mean(**given["mean"]),
    }
    return Row(**given | changed)


class Parts:
    """The folder of what a run has made so far; without one nothing is kept.

    A part is taken up only by a run with the same data, trials and version: its name holds a digest of them.
    """

    def __init__(self, folder: Path | None, study: Study) -> None:
        self._folder = folder
        settings = [version("optstream"), study.trials, study.quick, study.data.digest() if folder else None]
        self._mark = sha256(json.dumps(settings).encode()).hexdigest()[:16]
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def find(self, name: str) -> Part | None:
        """Return a figure that is ready, or None; one that was not written to its end is made again."""
        if self._folder is None:
            return None
        try:
            return Part.from_json(self._path(self._folder, name).read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, name: str, part: Part) -> None:
        """Keep a figure that is ready."""
        if self._folder is None:
            return
        target = self._path(self._folder, name)
        beside = target.with_suffix(f".{os.getpid()}")
        beside.write_text(part.to_json(), encoding="utf-8")
        beside.replace(target)

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}-{self._mark}.json"
