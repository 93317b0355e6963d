"""``optstream report``: a page about a ledger that anyone can read."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.display import working
from optstream.cli.exits import UsageError, emit, notice
from optstream.cli.ledger import Location, open_ledger
from optstream.cli.outputs import Outputs
from optstream.cli.times import length_of, moment
from optstream.errors import ParameterError

__all__ = ["report"]


def report(
    *,
    location: Location,
    stream: Annotated[list[str] | None, typer.Argument(help="Streams to show, by default all.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File, by default standard output.")] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    entity: Annotated[
        str | None,
        typer.Option(help="Whom the promise is about, with an article: 'one rider'. By default as policies name it."),
    ] = None,
    unit: Annotated[str, typer.Option(help="What the figures count, such as trips.")] = "",
    step: Annotated[str | None, typer.Option(help="Length of a step, such as 30m.")] = None,
    origin: Annotated[str | None, typer.Option(metavar="TIME", help="Time of step 0; needs --step.")] = None,
) -> None:
    """Write a page for people who do not know differential privacy: figures, promise, errors, budget.

    It is one HTML file that needs no network. Nothing but what was released goes into it, and nothing is spent.
    """
    from optstream.report import Names, ledger_page  # noqa: PLC0415  (commands that need none start faster)

    if origin is not None and step is None:
        raise UsageError("--origin needs --step")
    begin = None if origin is None else moment("--origin", origin)
    if begin is not None and not isinstance(begin, datetime):
        raise ParameterError(f"--origin is {origin!r}, but must be a time such as 2016-01-01T00:00:00")
    length = None if step is None else timedelta(microseconds=length_of(step, numbers=False))
    names = Names(title=title, entity=entity, unit=unit, step=length, origin=begin)
    with Outputs(location) as outputs:
        target = None if output is None or str(output) == "-" else outputs.prepare(output)
        with working("reading"), open_ledger(location) as ledger:
            for name in stream or ():
                if name not in ledger.streams:
                    raise UsageError(f"STREAM is {name!r}, but must be one of {', '.join(ledger.streams) or '(none)'}")
            text = ledger_page(ledger, names, stream or None)
        (emit if target is None else target.write)(text.encode())
    if output is not None:
        notice(f"wrote {output}; it holds only what was released")
