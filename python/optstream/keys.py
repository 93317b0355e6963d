"""A curator's key: 32 secret bytes that make a release repeatable bit for bit, wherever it is computed again.

Whoever holds the key can remove the noise, so it is kept as the raw data is kept: in a file that its owner alone can
read, or in the environment. It is read once and cannot be read back; it appears in no message, log or ledger.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from optstream._core import CuratorKey
from optstream.errors import ParameterError, ParameterTypeError
from optstream.names import checked_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["CuratorKey", "create_key", "data_digest", "find_key", "find_keys", "read_key", "read_keys", "rotate_key"]

VARIABLE = "OPTSTREAM_KEY"
"""Environment variable with the key as 64 hexadecimal digits."""
FILE_VARIABLE = "OPTSTREAM_KEY_FILE"
"""Environment variable with the path of the key's file."""
DIGITS = 64
MOST = 1 << 16
"""Bytes of a file that are looked at."""


def create_key(path: str | Path) -> None:
    """Write a new key, as 64 hexadecimal digits, to a file that its owner alone can read.

    Raises:
        ParameterError: The file exists, or cannot be written.
    """
    try:
        descriptor = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ParameterError(f"key file {path} exists, but must not: a key that was used is still needed") from None
    except (OSError, ValueError) as error:
        raise ParameterError(f"key file {str(path)!r} cannot be written: {_reason(error)}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(DIGITS // 2) + "\n")
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        # Half a key is none, and would stand in the way of the next try.
        Path(path).unlink(missing_ok=True)
        raise ParameterError(f"key file {str(path)!r} cannot be written: {_reason(error)}") from None


def rotate_key(path: str | Path) -> None:
    """Put a new key into a key's file, before those that it holds: old periods are still repeated with theirs.

    The ledgers must follow, see :meth:`Ledger.rotate_key`; until then they go on with the key that they know.

    Raises:
        ParameterError: The file is no key's file, or cannot be written.
    """
    read_keys(path)
    target = Path(path)
    made = target.with_name(f"{target.name}.new")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(DIGITS // 2) + "\n" + target.read_text(encoding="ascii"))
                file.flush()
                os.fsync(descriptor)
            # All at once: half a file would be no key.
            made.replace(target)
        except OSError:
            made.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ParameterError(f"key file {str(path)!r} cannot be written: {_reason(error)}") from None


def read_key(path: str | Path) -> CuratorKey:
    """Return the key in a file, the newest if it holds several.

    Raises:
        ParameterError: The file cannot be read, can be read by others, or does not hold 64 hexadecimal digits.
    """
    return read_keys(path)[0]


def read_keys(path: str | Path) -> tuple[CuratorKey, ...]:
    """Return the keys in a file, one in every line: the newest, and those that came before it."""
    if not isinstance(path, (str, Path)):
        raise ParameterTypeError(f"path is of type {type(path).__name__}, but must be the path of a key file")
    try:
        # A pipe without a writer would be waited for.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            # What is checked is the file that was opened, not one that takes its name later.
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST) if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as error:
        raise ParameterError(f"key file {str(path)!r} cannot be read: {_reason(error)}") from None
    if not stat.S_ISREG(mode):
        raise ParameterError(f"key file {path} is not a regular file, but must be")
    if os.name == "posix" and mode & 0o077:
        raise ParameterError(
            f"key file {path} has mode {stat.S_IMODE(mode):04o}, but must be closed to others: chmod 600 {path}"
        )
    return _keys(f"key file {path}", content)


def find_key(key: CuratorKey | str | Path | None = None) -> CuratorKey | None:
    """Return a given key, the one in a given file, or the one that the environment names, if any.

    >>> find_key(CuratorKey(bytes(range(32))))
    CuratorKey(<secret>)
    """
    found = find_keys(key)
    return found[0] if found else None


def find_keys(key: CuratorKey | str | Path | None = None) -> tuple[CuratorKey, ...]:
    """Return the same with the keys that came before it, if they are known; nothing without a key."""
    if isinstance(key, CuratorKey):
        return (key,)
    if isinstance(key, (str, Path)):
        return read_keys(key)
    if key is not None:
        raise ParameterTypeError(
            f"key is of type {type(key).__name__}, but must be a CuratorKey or the path of its file"
        )
    if VARIABLE in os.environ:
        return _keys(f"environment variable {VARIABLE}", os.environb[VARIABLE.encode()])
    return read_keys(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else ()


def data_digest(key: CuratorKey, stream: str, period: int, units: NDArray[np.int64]) -> bytes:
    """Return the keyed digest of a period's data, which a charge is for: see :meth:`Ledger.charge_many`.

    Args:
        key: The curator's key.
        stream: The name of the stream.
        period: The number of the period.
        units: One row of integers of the grid for every leaf, as :meth:`OptStream.read` gives them.
    """
    if not isinstance(key, CuratorKey):
        raise ParameterTypeError(f"key is of type {type(key).__name__}, but must be a CuratorKey")
    if isinstance(period, bool) or not isinstance(period, int):
        raise ParameterTypeError(f"period is of type {type(period).__name__}, but must be an int")
    if not 0 <= period < 2**63:
        raise ParameterError(f"period is {period}, but must be from 0 to 2^63 - 1")
    return key.digest([checked_name(stream).encode(), period.to_bytes(8, "little")], units)


def _reason(error: OSError | ValueError) -> str:
    """Return what is wrong with a path; one that holds a null or half a character is no path."""
    return str(error.strerror) if isinstance(error, OSError) else str(error)


def _keys(place: str, content: bytes) -> tuple[CuratorKey, ...]:
    return tuple(_key(place, line) for line in content.split() or [b""])


def _key(place: str, content: bytes) -> CuratorKey:
    digits = content.strip()
    try:
        secret = bytes.fromhex(digits.decode("ascii")) if len(digits) == DIGITS else b""
    except ValueError:
        secret = b""
    if not secret:
        # The content itself must not be shown: it may be a key with a slip of the pen.
        raise ParameterError(
            f"{place} holds {len(digits)} characters, but must hold {DIGITS} hexadecimal digits"
        ) from None
    return CuratorKey(secret)
