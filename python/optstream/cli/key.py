"""``optstream key``: the curator's secret."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.exits import notice

__all__ = ["create", "rotate"]


def create(
    *, file: Annotated[Path, typer.Argument(help="Where the key goes. An existing file is never overwritten.")]
) -> None:
    """Write a new key, 32 random bytes, to a file that its owner alone can read.

    With a key a release that is computed again gives the same bytes.

    Whoever has it can remove the noise: keep it as safe as the raw data.
    """
    from optstream.keys import create_key  # noqa: PLC0415

    create_key(file)
    notice(f"wrote a new key to {file}")


def rotate(
    *,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The key's file.")],
    ledger: Annotated[list[str], typer.Option(metavar="URL", help="Every ledger that is used with the key.")],
) -> None:
    """Put a new key before those that a file holds, and go on with it in ledgers.

    Former periods are still repeated with the former keys, so the file keeps them.

    A rotation that was interrupted is completed by the same command, without another key.
    """
    from optstream.keys import rotate_key  # noqa: PLC0415

    turned = _turn(ledger, file)
    if not turned:
        rotate_key(file)
        turned = _turn(ledger, file)
    notice(f"{turned} streams go on with a new key; {file} keeps the former ones")


def _turn(ledgers: list[str], file: Path) -> int:
    """Go on with the newest key in ledgers; return in how many streams it is new."""
    from optstream.ledger import Ledger  # noqa: PLC0415

    turned = 0
    for location in ledgers:
        with Ledger(location, key=file) as opened:
            turned += opened.rotate_key()
    return turned
