"""``optstream reproduce``: the paper's evaluation, run again."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optstream.cli.exits import OutputError, notice
from optstream.cli.outputs import Outputs

if TYPE_CHECKING:
    from optstream.reproduce.run import Made

__all__ = ["reproduce"]

NAMES = (
    "january, l1-error, hierarchy, forecast, forecast-error, components, components-error, alpha, alpha-error, "
    "pegasus, pegasus-error, samplers, errors, moving"
)
PAGE = "index.html"
KEPT = "parts"
"""The folder of figures that are ready; it goes when all of them are."""


def reproduce(
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Folder for the page and its files.")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the streams: see docs/reproduction.md. Not for moving alone."),
    ] = None,
    figure: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"Only this one; may be repeated. One of {NAMES}.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="How often a month is released: 30 by default, 3 if quick.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer trials, streams, days and forecasts.")] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes that share the work; all cores.")] = None,
) -> None:
    """Run every figure and table of the OptStream paper's evaluation again, sound and as printed.

    Writes pictures (PNG, SVG), one table with all numbers (CSV, Markdown), a summary (Markdown) and a page that holds
    everything, each as soon as a figure is ready. The same command again goes on where one was interrupted. What it
    writes depends on the data and is not private.
    """
    from optstream.reproduce import reproduce as run  # noqa: PLC0415

    kept = output / KEPT
    try:
        # A folder that takes no files is found before the work.
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {kept}: {error.strerror}") from None

    def write(made: "Made") -> None:
        with Outputs() as outputs:
            for name, content in made.files.items():
                outputs.prepare(output / name).write(content)

    try:
        made = run(data, figures=figure or (), trials=trials, quick=quick, processes=processes, kept=kept, show=write)
    finally:
        with suppress(OSError):
            # Nothing was ready.
            kept.rmdir()
    shutil.rmtree(kept, ignore_errors=True)
    notice(f"{len(made.rows)} rows and {len(made.files)} files are in {output}; begin with {output / PAGE}")
