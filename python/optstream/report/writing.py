"""Pages as text and as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError, ParameterTypeError
from optstream.report.content import Names, ledger_subjects, release_subject
from optstream.report.page import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.ledger import Ledger
    from optstream.mechanism.release import Release
    from optstream.mechanism.tree_release import TreeRelease

__all__ = ["ledger_page", "release_page", "write_ledger", "write_release"]


def release_page(release: Release | TreeRelease, names: Names) -> str:
    """Return the page of a release."""
    return page([release_subject(release, names)], names)


def ledger_page(ledger: Ledger, names: Names, streams: Sequence[str] | None = None) -> str:
    """Return the page of the streams of a ledger, of all unless some are named."""
    return page(ledger_subjects(ledger, names, streams), names)


def write_release(release: Release | TreeRelease, path: str | Path, **names: Any) -> None:
    """Write the page of a release to a file."""
    _write(path, release_page(release, Names(**names)))


def write_ledger(ledger: Ledger, path: str | Path, streams: Sequence[str] | None = None, **names: Any) -> None:
    """Write the page of the streams of a ledger to a file."""
    _write(path, ledger_page(ledger, Names(**names), streams))


def _write(path: str | Path, text: str) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ParameterTypeError(f"path is of type {type(path).__name__}, but must be a path")
    try:
        # What cannot be encoded, half a surrogate pair, is shown as a question mark.
        Path(path).write_bytes(text.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"path is {str(path)!r}, but must be a file that can be written: {why}") from None
