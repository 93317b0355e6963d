"""``optstream plan``: what a release would cost."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.display import print_statement
from optstream.cli.exits import UsageError, emit
from optstream.cli.parameters import Build, takes_mechanism
from optstream.mechanism.members import read_pool_plan
from optstream.mechanism.plan import read_content

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
    """Say what a release would cost, stage by stage. Needs no data and spends nothing.

    Of a plan file with several [stream.NAME] it says what each member costs, and what all of them cost together.
    """
    given = file or build.keywords["plan"]
    if given is not None and build.keywords["member"] is None and "stream" in read_content(given):
        pool = read_pool_plan(given)
        emit(f"{pool.to_json() if as_json else pool}\n".encode())
        return
    if file is not None and build.keywords["plan"] is not None:
        raise UsageError("--plan does not go with a plan file as argument: give one of them")
    statement = (build() if file is None else build(plan=file)).statement
    if as_json:
        emit(f"{statement.to_json()}\n".encode())
    else:
        print_statement(statement)
