"""The command ``optstream``, also as ``python -m optstream``."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import NoReturn

NEEDED = ("polars", "rich", "typer")


def main() -> int:
    """Run the command line and return its exit code; without the extra ``cli`` say how to install it."""
    if not all(map(find_spec, NEEDED)):
        sys.stderr.write("error: the command line needs more packages: pip install 'optstream[cli]'\n")
        return 2
    signal.signal(signal.SIGTERM, _terminate)
    try:
        from optstream.cli.app import run  # noqa: PLC0415  (needs the extra)

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130


def _terminate(number: int, _frame: object) -> NoReturn:
    """End as an error would, so that temporary files are removed."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
