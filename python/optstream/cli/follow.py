"""``optstream follow``: observations in line by line, private values out line by line."""

import csv
import io
import json
import sys
import time as clock
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from optstream.cli.exits import UsageError, emit, notice
from optstream.cli.ledger import open_ledger
from optstream.cli.parameters import Build, takes_mechanism
from optstream.cli.times import length_of
from optstream.errors import DataError, ParameterError
from optstream.stream.stream import Stream

__all__ = ["follow"]

PAUSE = 0.2
"""Seconds between two looks at a file that grows."""


@takes_mechanism
def follow(
    *,
    build: Build,
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A growing file; - is standard input.")] = "-",
    ledger: Annotated[str, typer.Option(metavar="URL", help="Where steps are charged and stored.")],
    stream: Annotated[str, typer.Option(metavar="NAME", help="Name of the stream in the ledger.")],
    key_file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Curator's key.")] = None,
    step: Annotated[str | None, typer.Option(help="Length of a step, such as 30m, if lines come with times.")] = None,
    origin: Annotated[str | None, typer.Option(metavar="TIME", help="Where step 0 begins.")] = None,
    missing: Annotated[str, typer.Option(help="refuse, hold, or a number that stands for missing steps.")] = "refuse",
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Coverage of the intervals.")] = 0.9,
    create_stream: Annotated[
        bool, typer.Option("--create-stream", help="Make the stream if the ledger does not know it.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End with the file instead of waiting for more.")] = False,
) -> None:
    """Release every step as it comes.

    A line is `STEP,VALUE` or a JSON object with "step" (or "time") and "value", for a hierarchy an object of leaves. A
    line of JSON comes out for each step. The ledger keeps everything: after an interruption give the same lines again,
    or the later ones alone, and what has left is repeated, never drawn again.
    """
    if (step is None) != (origin is None):
        raise UsageError("--step and --origin go together")
    if not 0 < interval < 1:
        raise ParameterError(f"--interval is {interval}, but must lie between 0 and 1")
    mechanism = build()
    with open_ledger(ledger, key=key_file) as account:
        released = Stream(
            mechanism,
            ledger=account,
            name=stream,
            emit="step",
            step=None if step is None else timedelta(microseconds=length_of(step, numbers=False)),
            origin=None if origin is None else datetime.fromisoformat(origin),
            missing=_missing(missing),
            late="stored",
            create=create_stream,
        )
        try:
            for number, line in enumerate(_lines(source, once=once), 1):
                when, value = _read(line, number, timed=step is not None)
                for release in released.push_many([when], [value]):
                    emit(_shown(release, interval))
        except KeyboardInterrupt:
            notice("interrupted; the ledger has all that left")


def _missing(text: str) -> Any:
    if text in {"refuse", "hold"}:
        return text
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--missing is {text!r}, but must be refuse, hold or a number") from None


def _lines(source: str, *, once: bool) -> Iterator[str]:
    """Yield whole lines as they come."""
    if source == "-":
        yield from iter(sys.stdin.readline, "")
        return
    with Path(source).open(encoding="utf-8") as file:
        rest = ""
        while True:
            part = file.readline()
            rest += part
            if rest.endswith("\n") or (once and not part and rest):
                yield rest
                rest = ""
            elif not part:
                if once:
                    return
                clock.sleep(PAUSE)


def _read(line: str, number: int, *, timed: bool) -> tuple[Any, Any]:
    """Return the step or time of a line, and its value. What is wrong is told without what the line says."""
    try:
        if line.lstrip().startswith("{"):
            content = json.loads(line)
            when, value = content["time" if timed else "step"], content["value"]
        else:
            when, text = next(csv.reader(io.StringIO(line)))
            value = float(text)
        return (datetime.fromisoformat(when) if timed else int(when)), value
    except (KeyError, TypeError, ValueError, StopIteration):
        raise DataError(
            f"line {number} is something else, but must be STEP,VALUE or a JSON object with a step and a value"
        ) from None


def _shown(release: Any, level: float) -> bytes:
    ends = release.interval(level)
    when = release.time.isoformat() if isinstance(release.time, datetime) else release.time
    content = {"time" if isinstance(release.time, datetime) else "step": when, "value": release.value, "interval": ends}
    return f"{json.dumps(content)}\n".encode()
