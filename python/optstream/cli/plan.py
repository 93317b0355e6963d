"""``optstream plan``: what a release would cost."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.display import print_statement
from optstream.cli.exits import UsageError, emit
from optstream.cli.parameters import Build, takes_mechanism

__all__ = ["plan"]


@takes_mechanism
def plan(
    *,
    build: Build,
    file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN]", exists=True, dir_okay=False, help="Plan file, as --plan.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the statement as JSON.")] = False,
) -> None:
    """Say what a release would cost, stage by stage. Needs no data and spends nothing."""
    if file is not None and build.keywords["plan"] is not None:
        raise UsageError("--plan does not go with a plan file as argument: give one of them")
    statement = (build() if file is None else build(plan=file)).statement
    if as_json:
        emit(f"{statement.to_json()}\n".encode())
    else:
        print_statement(statement)
