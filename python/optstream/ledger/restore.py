"""Putting a backup of a ledger back, with what may have left since."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from optstream.errors import LedgerError, ParameterError
from optstream.ledger.book import Ledger
from optstream.ledger.sqlite import check_nothing_left, restore_file

if TYPE_CHECKING:
    from optstream.keys import CuratorKey

__all__ = ["restore_ledger"]


def restore_ledger(
    backup: str | Path,
    target: str | Path,
    *,
    key: CuratorKey | str | Path | None = None,
    witness: str | Path | None = None,
    accept_loss: int | None = None,
) -> str:
    """Make a ledger of a backup, in a new file; return its identity.

    What has left since the backup was made is not in it. The witness tells whether anything has. If so, or if there is
    no witness, the loss must be accepted: all periods that may have left are void then and charged in full, and the
    ledger gets another identity, so that nobody takes it for the one that knew more.

    Args:
        backup: What :meth:`Ledger.backup` has written.
        target: The path of the new ledger.
        key: The curator's key, if the ledger was used with one.
        witness: The witness of the ledger.
        accept_loss: The number of the last period, of any stream, that may have left.

    Raises:
        LedgerError: The backup is behind its witness, or is none.
        ParameterError: Neither a witness nor a loss is given.
    """
    if witness is None and accept_loss is None:
        raise ParameterError(
            "witness and accept_loss are None, but one must be given: what has left since the backup must be known, or "
            "be charged in full"
        )
    if Path(target).exists():
        raise LedgerError(f"ledger {target} exists, but must not: it may know more than the backup")
    check_nothing_left(Path(target))
    place = Path(f"{target}.restoring")
    try:
        restore_file(backup, place, os.urandom(16).hex() if accept_loss is not None else None)
        with Ledger(place, key=key, witness=witness if accept_loss is None else None) as ledger:
            found = ledger.verify()
            if found.damage:
                raise LedgerError(f"backup {backup} is damaged: {found.damage[0]}")
            if accept_loss is not None:
                if ledger.steps.is_keyed:
                    # The key may have been rotated since.
                    ledger.rotate_key()
                ledger.forget_since(accept_loss)
            identity = ledger.identity
        # Closing has moved the log into the file.
        if Path(f"{place}-wal").stat().st_size:
            raise LedgerError(f"ledger {place} is in use, but must not be")
        place.rename(target)
    finally:
        for end in ("", "-wal", "-shm"):
            Path(f"{place}{end}").unlink(missing_ok=True)
    return identity
