"""``optstream tune``: choose a mechanism before anything is spent."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from optstream.cli.display import print_table, working
from optstream.cli.exits import UsageError, emit, notice
from optstream.cli.outputs import Outputs
from optstream.cli.parameters import read_hierarchy
from optstream.cli.tables import numbers, read_table, value_column
from optstream.errors import DataError

__all__ = ["tune"]

SHOWN = 12


def tune(
    *,
    epsilon: Annotated[str, typer.Option(metavar="NUMBER", help="Budget of a window: 0.5, or 1/3.")],
    w: Annotated[int, typer.Option(help="Steps of a window, and of a period.")],
    alpha: Annotated[float, typer.Option(help="How much one entity may change one step.")],
    lower: Annotated[float, typer.Option(help="Public lower bound of the values.")],
    upper: Annotated[float, typer.Option(help="Public upper bound of the values.")],
    history: Annotated[
        str | None,
        typer.Argument(metavar="[HISTORY]", help="Public or released values: .csv, .parquet, or - for standard input."),
    ] = None,
    delta: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Allow this probability of failure, for Gaussian noise: 1e-6.")
    ] = None,
    neighbours: Annotated[Literal["sliding", "aligned"], typer.Option(help="Which windows are protected.")] = "sliding",
    entities: Annotated[
        Literal["settled", "moving"], typer.Option(help="Whether they stay in one leaf of a hierarchy.")
    ] = "settled",
    entity: Annotated[str, typer.Option(metavar="WORD", help="What is protected, such as rider.")] = "entity",
    value: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of HISTORY. By default the only one of numbers.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Without HISTORY: a guess of the standard deviation of the values within a period."),
    ] = None,
    season: Annotated[int, typer.Option(help="Periods after which weekdays repeat; 1 for none.")] = 7,
    hierarchy: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Tree of groups, as `optstream release` takes it.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the best one as a plan file.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Write what HISTORY says, in JSON, for the first `optstream release`.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: expected error against k.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole table as JSON.")] = False,
) -> None:
    """Compare mechanisms with the same guarantee, and say which has the smallest expected error.

    HISTORY says what the stream looks like: last year's public figures, or what was released before. Never give it raw
    private data: what is chosen from that would tell about it. Nothing is released and nothing is spent.
    """
    from optstream.mechanism.description import rational, to_toml  # noqa: PLC0415
    from optstream.mechanism.tuning import tune as compare  # noqa: PLC0415
    from optstream.pictures import empty_figure  # noqa: PLC0415
    from optstream.privacy.guarantee import Guarantee  # noqa: PLC0415

    kind = "png" if plot is None else plot.suffix.lstrip(".") or "png"
    if plot is not None:
        # What cannot be drawn is found before the work, not after it.
        empty_figure(kind)
    tree = None if hierarchy is None else read_hierarchy(hierarchy)
    if state is not None and history is None:
        raise UsageError("--state needs HISTORY, which it is made from")
    if tree is not None and value is not None:
        raise UsageError("--value does not go with a hierarchy")
    guarantee = Guarantee(
        epsilon=rational("epsilon", epsilon),
        w=w,
        alpha=alpha,
        delta=0 if delta is None else rational("delta", delta),
        neighbours=neighbours,
        entities=entities,
        entity=entity,
    )
    x = None
    if history is not None:
        with working("reading"):
            frame = read_table(history, None)
            columns = [value_column(frame, value, None)] if tree is None else list(tree.leaves)
            data = numbers(frame, columns)
        if len(data) < w:
            raise DataError(f"{history} has {len(data)} rows, but must have at least one period of {w}")
        data = data.tail(len(data) // w * w)
        x = data[columns[0]].to_numpy() if tree is None else data
    with Outputs(history, hierarchy) as outputs:
        plan, known, picture = (None if path is None else outputs.prepare(path) for path in (output, state, plot))
        found = compare(guarantee, x, bounds=(lower, upper), scale=scale, season=season, hierarchy=tree)
        if plan is not None:
            plan.write(to_toml(found.mechanism).encode())
        if known is not None:
            known.write(json.dumps(found.state).encode())
        if picture is not None:
            picture.write(found.picture(kind))
    if as_json:
        emit(f"{found.to_json()}\n".encode())
        return
    rows = [
        (
            *row.described,
            f"{row.expected_error:.4g}",
            "chosen" if row is found.chosen else "plain Laplace" if row is found.plain else "",
        )
        for row in found.shown(SHOWN)
    ]
    print_table("Expected mean absolute error", ("measured", "noise", "values", "error", ""), rows)
    better = found.plain.expected_error / found.expected_error
    notice(f"{better:.3g} times closer than the plain Laplace mechanism is expected; nothing was spent")
