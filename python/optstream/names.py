"""Names of streams, pools and clocks."""

from __future__ import annotations

from unicodedata import normalize

from optstream.errors import ParameterError, ParameterTypeError

__all__ = ["checked_name"]

LONGEST = 200


def checked_name(name: str, what: str = "stream") -> str:
    """Return a name in the form in which names that look alike are one."""
    if not isinstance(name, str):
        raise ParameterTypeError(f"{what} is of type {type(name).__name__}, but must be str")
    # A text of numpy is shown in another way, and what is shown is hashed.
    name = normalize("NFC", str(name))
    if not 1 <= len(name) <= LONGEST or not name.isprintable():
        raise ParameterError(f"{what} is {name[:LONGEST]!r}, but must be a name of 1 to {LONGEST} printable characters")
    return name
