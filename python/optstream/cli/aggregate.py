"""``optstream aggregate``: raw events to a series in which one entity moves a step by at most alpha."""

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from optstream.cli.exits import UsageError, notice
from optstream.cli.outputs import Outputs
from optstream.cli.parameters import read_hierarchy
from optstream.cli.tables import encode, format_of
from optstream.cli.times import moment

__all__ = ["aggregate"]


def aggregate(
    *,
    events: Annotated[str, typer.Argument(help="Events: .csv, .csv.gz, .tsv, .parquet or .pq.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the series goes: .csv or .parquet.")],
    entity: Annotated[str, typer.Option(metavar="COLUMN", help="Whose event it is.")],
    time: Annotated[str, typer.Option(metavar="COLUMN", help="When it was: times, dates or whole step numbers.")],
    step: Annotated[str | None, typer.Option(help="Length of a step, such as 30m; not for step numbers.")] = None,
    value: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Numbers to add up. Without it entities are counted.")
    ] = None,
    alpha: Annotated[float, typer.Option(help="How much one entity may move one step.")] = 1.0,
    clip: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LO HI", help="Bounds of an entity's sum in one step. By default 0 and alpha."),
    ] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Where the first step begins.")] = None,
    stop: Annotated[str | None, typer.Option(metavar="TIME", help="Where the last step ends.")] = None,
    group: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="One column of the series for each group.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A group that has a column whether it has events or not; may be repeated."),
    ] = None,
    hierarchy: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Tree whose leaves are the groups: .toml, .json or .csv."),
    ] = None,
    max_groups: Annotated[
        int | None,
        typer.Option(help="In how many groups an entity counts at a step; alpha is then for all columns together."),
    ] = None,
    change: Annotated[
        str, typer.Option(metavar="any|presence", help="What alpha covers: any change of events, or presence alone.")
    ] = "any",
) -> None:
    """Turn raw events into a series: distinct entities per step, or the sum of their clipped values.

    The result is not private yet: it is what `optstream release` takes.
    """
    from optstream.data import events as library  # noqa: PLC0415  (as late as the ledger)

    kind = format_of(output)
    if groups and hierarchy is not None:
        raise UsageError("--groups and --hierarchy are both given, but only one of them says what the groups are")
    if group is None and (groups or hierarchy is not None):
        raise UsageError("--groups and --hierarchy need --group, the column with the group of an event")
    if hierarchy is not None:
        groups = list(read_hierarchy(hierarchy).leaves)
    with Outputs(events, hierarchy) as outputs:
        target = outputs.prepare(output)
        series = library.aggregate(
            events,
            entity=entity,
            time=time,
            step=step,
            value=value,
            alpha=alpha,
            clip=clip,
            start=None if start is None else moment("--start", start),
            stop=None if stop is None else moment("--stop", stop),
            group=group,
            groups=groups,
            max_groups=max_groups,
            change=cast("Literal['any', 'presence']", change),
        )
        target.write(encode(series, kind))
    if start is None or stop is None:
        notice("note: the range of times is taken from the events and is not protected; give --start and --stop")
    if group is not None and groups is None:
        notice("note: the groups are taken from the events and are not protected; give --groups or --hierarchy")
