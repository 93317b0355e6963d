"""``optstream reproduce``: the paper's evaluation, run again."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.exits import OutputError, notice
from optstream.cli.outputs import Outputs

__all__ = ["reproduce"]

NAMES = (
    "january, l1-error, hierarchy, forecast, forecast-error, components, components-error, alpha, alpha-error, "
    "pegasus, pegasus-error, samplers, errors"
)
PAGE = "index.html"


def reproduce(
    *,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder with the streams: see docs/reproduction.md.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Folder for the page and its files.")],
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
    everything. What it writes depends on the data and is not private.
    """
    from optstream.reproduce import reproduce as run  # noqa: PLC0415

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {output}: {error.strerror}") from None
    with Outputs() as outputs:
        # A folder that takes no files is found before the work.
        page = outputs.prepare(output / PAGE)
        made = run(data, figures=figure or (), trials=trials, quick=quick, processes=processes)
        page.write(made.files.pop(PAGE))
        for name, content in made.files.items():
            outputs.prepare(output / name).write(content)
    notice(f"{len(made.rows)} rows and {len(made.files) + 1} files are in {output}; begin with {output / PAGE}")
