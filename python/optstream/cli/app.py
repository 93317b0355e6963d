"""The commands of ``optstream``, and how a run of one ends."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.main import get_command

from optstream import __version__
from optstream.cli import aggregate, audit, follow, key, ledger, plan, release, reproduce, serve, tune
from optstream.cli import report as reports
from optstream.cli.exits import MEANINGS, emit, report

__all__ = ["app", "run"]

ENDS = "[bold]Exit codes[/bold]\n\n" + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
EXAMPLE = "[bold]Example[/bold]\n\n"
MECHANISM = "--epsilon 1 --w 48 --alpha 10 --lower 0 --upper 20000 --k 12"

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Release time series under differential privacy.")
keys = typer.Typer(no_args_is_help=True, help="Make the curator's key.")
tokens = typer.Typer(no_args_is_help=True, help="Make tokens for clients of the service.")
ledgers = typer.Typer(no_args_is_help=True, help="Make, show, check and export ledgers.")
pools = typer.Typer(no_args_is_help=True, help="Make pools: streams that share a budget.")
streams = typer.Typer(no_args_is_help=True, help="Make streams, apart or in a pool.")

app.command(
    epilog=EXAMPLE + f"optstream release loads.csv -o private.csv --time when {MECHANISM}\n\n"
    "optstream release loads.csv -o private.csv --time when --origin 2016-01-01T00:00:00 --step 30m --plan plan.toml "
    "--ledger ledger.db --stream loads --key-file curator.key"
)(release.release)
app.command(
    epilog=EXAMPLE + "tail -f loads.csv | optstream follow - --ledger ledger.db --stream loads --plan plan.toml"
)(follow.follow)
app.command(epilog=EXAMPLE + f"optstream plan plan.toml\n\noptstream plan {MECHANISM}")(plan.plan)
app.command(
    epilog=EXAMPLE + "optstream aggregate trips.csv -o series.csv --entity rider --time at --step 30m "
    "--start 2016-01-01T00:00:00 --stop 2016-02-01T00:00:00"
)(aggregate.aggregate)
app.command(
    epilog=EXAMPLE + "optstream tune last-year.csv --epsilon 1 --w 48 --alpha 10 --lower 0 --upper 20000 "
    "-o plan.toml --plot tune.png"
)(tune.tune)
app.command(epilog=EXAMPLE + "optstream audit --mechanism plan.toml --trials 100000 --plot audit.png")(audit.audit)
app.command(
    epilog=EXAMPLE + "optstream reproduce --data data --figure january --figure l1-error -o build/reproduction"
)(reproduce.reproduce)
app.command(
    epilog=EXAMPLE + "optstream report ledger.db -o report.html --title 'Trips by half hour' --entity 'one rider' "
    "--unit trips --step 30m --origin 2016-01-01T00:00:00"
)(reports.report)
ledgers.command(epilog=EXAMPLE + "optstream ledger init ledger.db")(ledger.init)
ledgers.command(epilog=EXAMPLE + "optstream ledger show ledger.db loads")(ledger.show)
ledgers.command(epilog=EXAMPLE + "optstream ledger export ledger.db -o releases.jsonl")(ledger.export)
ledgers.command(epilog=EXAMPLE + "optstream ledger verify ledger.db")(ledger.verify)
ledgers.command(epilog=EXAMPLE + "optstream ledger backup ledger.db backup.db")(ledger.backup)
ledgers.command(
    epilog=EXAMPLE + "optstream ledger restore backup.db ledger.db --witness /mnt/other/witness.db\n\n"
    "optstream ledger restore backup.db ledger.db --accept-loss 417"
)(ledger.restore)
ledgers.command(epilog=EXAMPLE + "optstream ledger accept-loss postgresql://host/database 417")(ledger.accept_loss)
keys.command(epilog=EXAMPLE + "optstream key create curator.key")(key.create)
keys.command(epilog=EXAMPLE + "optstream key rotate curator.key --ledger ledger.db")(key.rotate)
pools.command("create", epilog=EXAMPLE + "optstream ledger pool create ledger.db riders --epsilon 1 --w 48")(
    ledger.create_pool
)
streams.command(
    "create", epilog=EXAMPLE + "optstream ledger stream create ledger.db trips --epsilon 1/2 --w 48 --pool riders"
)(ledger.create_stream)
ledgers.add_typer(pools, name="pool")
ledgers.add_typer(streams, name="stream")
app.command(epilog=EXAMPLE + "optstream serve --config service.toml")(serve.serve)
tokens.command("create", epilog=EXAMPLE + "optstream token create meters.token")(serve.create_token)
app.add_typer(ledgers, name="ledger")
app.add_typer(tokens, name="token")
app.add_typer(keys, name="key")


def _print_version(asked: bool) -> None:  # noqa: FBT001  (Typer calls it)
    if asked:
        emit(f"optstream {__version__}\n".encode())
        raise typer.Exit


@pools.callback()
def _pools() -> None:
    """Make pools: streams that share a budget."""


@streams.callback()
def _streams() -> None:
    """Make streams, apart or in a pool."""


@keys.callback()
def _keys() -> None:
    """Make the curator's key."""


@tokens.callback()
def _tokens() -> None:
    """Make tokens for clients of the service."""


@app.callback(epilog=EXAMPLE + f"optstream release loads.csv -o private.csv {MECHANISM}\n\n{ENDS}")
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from. It may show private data.")
    ] = False,
) -> None:
    """Release time series under differential privacy."""


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code; the one place where errors become codes and messages."""
    try:
        code = get_command(app).main(list(arguments), prog_name="optstream", standalone_mode=False)
    except Exception as error:  # noqa: BLE001  (whatever it is, the exit code must tell)
        if "--debug" in arguments:
            traceback.print_exc()
        code = report(error, as_json="--json" in arguments)
    if code == 141:  # noqa: PLR2004
        # The interpreter flushes standard output once more when it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or 0
