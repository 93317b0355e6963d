"""``optstream release``: a private series from a file."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from optstream.cli.display import working
from optstream.cli.exits import OutputError, UsageError, emit, notice
from optstream.cli.ledger import open_ledger
from optstream.cli.outputs import Outputs
from optstream.cli.parameters import Build, takes_mechanism
from optstream.cli.tables import encode, format_of, iso_times, numbers, read_table, value_column
from optstream.cli.times import Grid, first_period, read_times
from optstream.errors import DataError, ParameterError
from optstream.mechanism.mechanism import Mechanism
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.state import State, sealed

__all__ = ["release"]

ENDS = ("_low", "_high")
in_time = partial(typer.Option, rich_help_panel="Time", show_default=False)
in_ledger = partial(typer.Option, rich_help_panel="Ledger", show_default=False)


@dataclass(frozen=True, repr=False)
class Series:
    """What is to be released: whole periods that are known to be in order."""

    x: Any
    times: pl.Series | None
    columns: list[str]
    period: int
    dropped: int


@takes_mechanism
def release(
    *,
    build: Build,
    source: Annotated[str, typer.Argument(metavar="INPUT", help=".csv or .parquet; - is CSV on standard input.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=".csv or .parquet. By default CSV on standard output.")
    ] = None,
    value: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What to release. By default the only column of numbers.")
    ] = None,
    statement: Annotated[
        Path | None, typer.Option(help="Write what the release costs to a file; JSON if it ends in .json.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(metavar="LEVEL", help="Add columns with intervals for the noise, such as 0.95.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="What the next run needs: costs of the last period, what an estimate has learnt. Read if it is there, "
            "and written. `optstream tune` makes a first one.",
        ),
    ] = None,
    per: Annotated[
        str,
        typer.Option(
            "--emit",
            metavar="WHAT",
            help="period, or step: each value from data up to its step only.",
        ),
    ] = "period",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    time: Annotated[
        str | None, in_time(metavar="COLUMN", help="Times of the rows. Without it rows are consecutive steps.")
    ] = None,
    step: Annotated[
        str | None, in_time(help="Length of a step, such as 30m. By default as the first rows show.")
    ] = None,
    origin: Annotated[
        str | None, in_time(metavar="TIME", help="Where period 0 begins. By default the time of the first row.")
    ] = None,
    drop_incomplete: Annotated[
        bool, in_time("--drop-incomplete", help="Leave out the rows of a last period that is not complete.")
    ] = False,
    ledger: Annotated[
        str | None, in_ledger(metavar="URL", help="Charge and store in a ledger: a path, or postgresql://...")
    ] = None,
    stream: Annotated[str | None, in_ledger(metavar="NAME", help="Name of the stream in the ledger.")] = None,
    create_stream: Annotated[
        bool, in_ledger("--create-stream", help="Make the stream if the ledger does not know it: a new budget.")
    ] = False,
    key_file: Annotated[
        Path | None, in_ledger(exists=True, dir_okay=False, help="Curator's key, from `optstream key create`.")
    ] = None,
    first: Annotated[
        int | None, in_time("--first-period", min=0, help="Number of the first period if there is no --time.")
    ] = None,
) -> None:
    """Release a series under differential privacy.

    INPUT has one row per step; with a hierarchy it has one column per leaf, and the result one per node.

    Nothing is drawn or charged before all of INPUT is checked. No file appears before the release is complete.
    """
    _check_emit(per, ledger)
    output = None if output is None or str(output) == "-" else output
    kind = "csv" if output is None else format_of(output)
    grid = Grid(origin, step)
    _check_ledger(ledger, {"stream": stream, "key-file": key_file, "create-stream": create_stream or None}, time, grid)
    _check_numbers(time, grid, first, keeps="--ledger" if ledger else "--state" if state else None)
    mechanism = build()
    _check_mechanism(mechanism, per, ledger, state)
    _check_extras(mechanism, value, interval)
    with working("reading"):
        series = _read(source, mechanism, value, time, Grid(origin, step), drop=drop_incomplete)
    if first is not None:
        series = replace(series, period=first)
    book = [] if ledger is None else [ledger, f"{ledger}-wal", f"{ledger}-shm"]
    inputs = source, build.keywords["plan"], build.keywords["hierarchy"], key_file, *book
    kept = state if ledger is None else None
    outputs = Outputs(*inputs)
    with _alone(kept), _explaining(ledger, kept, outputs), outputs:
        known = None if state is None or not state.exists() else _known(state, mechanism, grid.clock())
        # In this order they are put in their places: what a run has spent is known before anything of it is seen.
        files = {path: outputs.prepare(path) for path in (kept, statement, output) if path is not None}
        if ledger is None or stream is None:
            made = _released(
                mechanism, series, known or State(clock=grid.clock()).to_data(mechanism.guarantee), state, per
            )
        else:
            # A slip in the path of a ledger would release everything a second time, so none is made here.
            with open_ledger(ledger, key=key_file) as account:
                account.enrol(stream, mechanism, Grid(origin, step).clock(), create=create_stream)
                made = account.release(mechanism, series.x, stream=stream, period=series.period, state=known)
        table = _table(made, series, interval)
        if statement is not None:
            text = made.statement.to_json() if statement.suffix == ".json" else str(made.statement)
            files[statement].write(f"{text}\n".encode())
        if output is not None:
            files[output].write(encode(table, kind))
        if kept is not None:
            files[kept].write(json.dumps(made.state).encode())
    if as_json:
        emit(_json(made, series, table, stream))
    elif output is None:
        emit(encode(table, kind))
    if not as_json:
        _say(made, series, stream)
        _say_what_next(kept, going_on=known is not None, in_ledger=ledger is not None)


def _check_mechanism(mechanism: Mechanism, per: str, ledger: str | None, state: Path | None) -> None:
    """Raise unless a mechanism goes with where its costs are kept."""
    if "period" in mechanism.emits:
        return
    for option, given in {"ledger": ledger, "state": state, "emit": per if per == "step" else None}.items():
        if given is not None:
            raise UsageError(
                f"--{option} does not go with {type(mechanism).__name__}: `optstream follow` releases its steps into a "
                "ledger"
            )


def _check_emit(per: str, ledger: str | None) -> None:
    if per not in {"period", "step"}:
        raise UsageError(f"--emit is {per!r}, but must be period or step")
    if per == "step" and ledger is not None:
        raise UsageError("--emit step does not go with --ledger: `optstream follow` releases steps into a ledger")


def _check_ledger(ledger: str | None, needing: dict[str, Any], time: str | None, grid: Grid) -> None:
    """Raise unless the options go together, and periods have the same numbers in every run with a ledger."""
    if time is None and grid != Grid(None, None):
        raise UsageError(f"--{'step' if grid.origin is None else 'origin'} needs --time")
    if ledger is None:
        lone = [name for name, value in needing.items() if value is not None]
        if lone:
            raise UsageError(f"--{lone[0]} needs --ledger")
    elif needing["stream"] is None:
        raise UsageError("--ledger needs --stream NAME")


def _check_numbers(time: str | None, grid: Grid, first: int | None, keeps: str | None) -> None:
    """Raise unless periods have the same numbers in every run that goes on from an earlier one."""
    if time is not None and first is not None:
        raise UsageError("--first-period does not go with --time: --origin and --step number the periods")
    if keeps is None:
        if first is not None:
            raise UsageError("--first-period needs --ledger or --state")
    elif time is not None and None in {grid.origin, grid.step}:
        raise UsageError(
            f"{keeps} with --time needs --origin and --step, so that a period has the same number in every run"
        )
    elif keeps == "--state" and time is None and first is None:
        raise UsageError("--state needs --time, or --first-period to say which periods these are, beginning with 0")


def _check_extras(mechanism: Mechanism, value: str | None, interval: float | None) -> None:
    if mechanism.hierarchy is not None and (interval is not None or value is not None):
        raise UsageError(f"--{'value' if interval is None else 'interval'} does not go with a hierarchy")
    if interval is not None and "period" not in mechanism.emits:
        raise UsageError(f"--interval does not go with {type(mechanism).__name__}, which says nothing of its errors")
    if interval is not None and not 0 < interval < 1:
        raise ParameterError(f"--interval is {interval}, but must lie between 0 and 1")


def _read(source: str, mechanism: Mechanism, value: str | None, time: str | None, grid: Grid, *, drop: bool) -> Series:
    frame = read_table(source, time)
    if time is not None and time not in frame.columns:
        raise ParameterError(f"--time is {time!r}, but must be a column: {frame.columns}")
    tree, w = mechanism.hierarchy, mechanism.guarantee.w
    columns = [value_column(frame, value, time)] if tree is None else list(tree.leaves)
    names = columns if tree is None else list(tree.nodes)
    if time in {*names, *(columns[0] + end for end in ENDS)}:
        raise ParameterError(f"--time is {time!r}, but must not have the name of a released column")
    times = None if time is None else read_times(frame[time])
    period = 0 if times is None else first_period(times, w, grid)
    rest = frame.height % w
    kept = frame.height - rest
    if not kept or (rest and not drop):
        hint = "; --drop-incomplete leaves them out" if kept else ""
        raise DataError(f"the input has {frame.height} rows: {kept // w} periods of {w} and {rest} rows more{hint}")
    data = numbers(frame.head(kept), columns)
    x = data[columns[0]].to_numpy() if tree is None else data
    return Series(x, None if times is None else times.head(kept), names, period, rest)


def _known(path: Path, mechanism: Mechanism, clock: str) -> dict[str, Any]:
    """Return what a file says was released and learnt before, if it is for the mechanism and its clock."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        known = None
    if not isinstance(known, dict):
        raise ParameterError(
            f"--state is {path}, but must be a file that `optstream tune` or `optstream release` wrote"
        )
    read = State.read(known, mechanism, clock)
    # What history says holds for any clock; from now on it is this one.
    return known if read.last is not None else sealed({**known, "clock": clock})


@contextmanager
def _alone(kept: Path | None) -> Iterator[None]:
    """Keep other runs away from a state: two that go on from the same one would release the same periods twice."""
    if kept is None:
        yield
        return
    target = Path(os.path.realpath(kept))
    with (target.parent / f".{target.name}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"--state is {kept}, which another run goes on from, but must be used by one") from None
        yield


@contextmanager
def _explaining(ledger: str | None, kept: Path | None, outputs: Outputs) -> Iterator[None]:
    """Add what a failure to write means, where a release is stored or its cost is kept."""
    try:
        yield
    except OutputError as error:
        if ledger is not None:
            words = "what the ledger has stored is safe: the same command costs nothing more"
        elif kept is not None and outputs.placed:
            words = f"what was drawn is spent, as {kept} now says, and these periods are not released again"
        else:
            raise
        raise OutputError(f"{error}; {words}") from None


def _released(mechanism: Mechanism, series: Series, start: dict[str, Any], kept: Path | None, per: str) -> Any:
    """Return what is released without a ledger."""
    if not isinstance(mechanism, OptStream):
        return mechanism.release(series.x)
    number = series.period if kept else None
    return mechanism.release(series.x, state=start, period=number, emit="step" if per == "step" else "period")


def _table(made: Any, series: Series, interval: float | None) -> pl.DataFrame:
    values = made.values if isinstance(made.values, pl.DataFrame) else pl.DataFrame({series.columns[0]: made.values})
    if interval is not None:
        ends = zip(ENDS, made.interval(interval), strict=True)
        values = values.with_columns(pl.Series(series.columns[0] + suffix, end.ravel()) for suffix, end in ends)
    return values if series.times is None else values.insert_column(0, series.times)


def _json(made: Any, series: Series, table: pl.DataFrame, stream: str | None) -> bytes:
    times = None
    if series.times is not None:
        texts = iso_times(series.times.to_frame()).to_series()
        times = [time if isinstance(time, int) else str(time) for time in texts]
        table = table.drop(series.times.name)
    content = {
        "times": times,
        "values": table.to_dict(as_series=False),
        "features": [sums.tolist() for sums in made.features],
        "statement": json.loads(made.statement.to_json()),
        "stream": stream,
        "first_period": series.period,
        "dropped_rows": series.dropped,
    }
    return f"{json.dumps(content, allow_nan=False)}\n".encode()


def _say(made: Any, series: Series, stream: str | None) -> None:
    if series.dropped:
        notice(f"left out the last {series.dropped} rows, which are no whole period")
    w = made.statement.guarantee.w
    periods = len(made.values) // w
    last = series.period + periods - 1
    which = f"{periods} periods" if stream is None else f"periods {series.period} to {last} of {stream!r}"
    notice(f"released {which}; no window of {w} steps costs more than epsilon = {made.statement.epsilon_shown}")


def _say_what_next(kept: Path | None, *, going_on: bool, in_ledger: bool) -> None:
    if kept is not None:
        notice(f"{'went on from' if going_on else 'began'} {kept}, which now says what the next run needs")
    elif not in_ledger:
        notice("the next periods are priced apart from these: --state FILE or --ledger URL keeps them together")
