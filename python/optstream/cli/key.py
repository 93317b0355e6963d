"""``optstream key``: the curator's secret."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.exits import notice

__all__ = ["create"]


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
