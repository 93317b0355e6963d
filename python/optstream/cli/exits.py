"""How a command ends: an exit code for every kind of failure, and one line that says what happened."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

from optstream.errors import (
    BudgetError,
    DataError,
    LedgerError,
    OptStreamError,
    ParameterError,
    ParameterTypeError,
    StreamError,
)

__all__ = ["MEANINGS", "OutputClosedError", "OutputError", "UsageError", "code_of", "emit", "notice", "report"]

MEANINGS = {
    0: "success",
    1: "unexpected error",
    2: "wrong usage of the command",
    3: "bad parameter or plan",
    4: "bad data or unreadable input",
    5: "the budget does not allow it",
    6: "trouble with the ledger",
    7: "verification of a ledger found problems",
    8: "an output cannot be written",
    130: "interrupted",
    141: "the reader of standard output has gone",
}


class UsageError(Exception):
    """Options that do not fit together."""


class OutputError(Exception):
    """A file cannot be written. What was there before is intact."""


class OutputClosedError(Exception):
    """Nobody reads standard output any more."""


# The first kind that fits decides.
KINDS: tuple[tuple[tuple[type[BaseException], ...], int], ...] = (
    # Typer keeps the base class of its usage errors to itself.
    ((UsageError, *typer.BadParameter.__bases__), 2),
    ((BudgetError,), 5),
    ((LedgerError,), 6),
    ((ParameterError, ParameterTypeError), 3),
    ((DataError, StreamError), 4),
    ((OutputError,), 8),
    ((OutputClosedError,), 141),
    ((OptStreamError,), 1),
    ((OSError,), 4),
    ((KeyboardInterrupt, typer.Abort), 130),
)


def code_of(error: BaseException) -> int:
    """Return the exit code of an error.

    >>> code_of(ParameterError("w is 0, but must be from 1 to 2^20")), code_of(KeyError("bug"))
    (3, 1)
    """
    return next((code for kinds, code in KINDS if isinstance(error, kinds)), 1)


def report(error: BaseException, *, as_json: bool) -> int:
    """Say on standard error what happened, in one line, and return the exit code."""
    code = code_of(error)
    if code in {130, 141}:
        return code
    if code == 1 and not isinstance(error, OptStreamError):
        message = (
            f"unexpected {type(error).__name__}, a bug: please report it with what "
            "`optstream --debug ...` shows, after a look that it holds nothing private"
        )
    elif isinstance(error, OSError) and error.filename is not None:
        message = f"cannot read {error.filename}: {error.strerror}"
    else:
        # Typer's usage errors put their message together on demand.
        given: Any = getattr(error, "format_message", lambda: str(error))()
        message = " ".join(str(given).split())
        if not message:
            # A command without arguments has shown its help.
            return code
    if code == 2 and not as_json:  # noqa: PLR2004
        context = getattr(error, "ctx", None)
        message += f" (see {getattr(context, 'command_path', 'optstream')} --help)"
    content = {"error": {"type": type(error).__name__, "message": message}}
    sys.stderr.write((json.dumps(content) if as_json else f"error: {message}") + "\n")
    return code


def notice(message: str) -> None:
    """Tell the user something that is no data."""
    sys.stderr.write(message + "\n")


def emit(data: bytes) -> None:
    """Write data to standard output, all of it before this returns."""
    try:
        sys.stdout.flush()
        # Without a buffer a pipe takes what it has room for.
        rest = memoryview(data)
        while rest:
            rest = rest[sys.stdout.buffer.write(rest) :]
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror}") from None
