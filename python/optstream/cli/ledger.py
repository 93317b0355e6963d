"""``optstream ledger``: what has been spent and released, and whether the books are in order."""

import json
from datetime import datetime
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from optstream.cli.display import print_table, show_left
from optstream.cli.exits import UsageError, emit, notice
from optstream.cli.outputs import Outputs
from optstream.privacy.budget import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optstream.ledger import Ledger
    from optstream.mechanism.optstream import OptStream
    from optstream.privacy.guarantee import Guarantee

__all__ = ["accept_loss", "backup", "create_pool", "create_stream", "export", "init", "restore", "show", "verify"]

Location = Annotated[str, typer.Argument(metavar="LEDGER", help="Path of the ledger, or postgresql://...")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def init(*, location: Location) -> None:
    """Make a ledger where there is none, and print its identity. What exists stays as it is, and is an error."""
    from optstream.errors import LedgerError  # noqa: PLC0415

    try:
        open_ledger(location).close()
    except LedgerError as error:
        if not any(words in str(error) for words in ("does not exist", "is empty")):
            raise
    else:
        raise UsageError(f"LEDGER is {location}, which is a ledger already")
    with open_ledger(location, create=True) as ledger:
        emit(f"{ledger.identity}\n".encode())
    notice(f"made a new ledger: {location}")


def show(
    *,
    location: Location,
    stream: Annotated[str | None, typer.Argument(help="A stream, to see its periods too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show every stream's policy, what has been charged and released, and what is left."""
    with open_ledger(location) as ledger:
        if stream is not None and stream not in ledger.streams:
            raise UsageError(f"STREAM is {stream!r}, but must be one of {', '.join(ledger.streams) or '(none)'}")
        names = ledger.streams if stream is None else (stream,)
        accounts = [_account(ledger, name, periods=stream is not None) for name in names]
        pools = [_pool_account(ledger, name) for name in (ledger.pools if stream is None else ())]
    if as_json:
        emit(f"{json.dumps({'streams': accounts, 'pools': pools}, indent=2)}\n".encode())
        return
    for pool in pools:
        shared = f"epsilon {shown(Fraction(pool['epsilon']))} in any {pool['w']} steps of all members together"
        members, left = ", ".join(pool["members"]) or "none", show_left(Fraction(pool["remaining"]))
        print_table(
            f"pool {pool['pool']}", ("", ""), [("policy", shared), ("members", members), ("least epsilon left", left)]
        )
    for account in accounts:
        _print_account(account)
    if not accounts:
        notice("the ledger has no streams")


def export(
    *,
    location: Location,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File, by default standard output.")] = None,
) -> None:
    """Write streams, plans and released values as lines of JSON. They hold nothing that is not released."""
    lines = StringIO()
    with Outputs(location) as outputs:
        target = None if output is None or str(output) == "-" else outputs.prepare(output)
        with open_ledger(location) as ledger:
            count = ledger.export(lines)
        (emit if target is None else target.write)(lines.getvalue().encode())
    notice(f"exported {count} lines")


def backup(
    *,
    location: Location,
    target: Annotated[Path, typer.Argument(help="A new file. An existing one is never overwritten.")],
) -> None:
    """Write a ledger to a new file as it is at this moment, while others go on. It is as secret as the ledger."""
    with open_ledger(location) as ledger:
        ledger.backup(target)
    notice(f"wrote a backup to {target}; `optstream ledger restore` makes a ledger of it")


def restore(
    *,
    source: Annotated[str, typer.Argument(metavar="BACKUP", help="What `optstream ledger backup` wrote.")],
    target: Annotated[Path, typer.Argument(help="The new ledger. An existing one is never overwritten.")],
    witness: Annotated[
        str | None, typer.Option(metavar="URL", help="Witness, which tells whether anything has left since.")
    ] = None,
    accept_loss: Annotated[
        int | None,
        typer.Option(metavar="PERIOD", min=0, help="Charge in full what may have left, up to this period."),
    ] = None,
    key_file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Curator's key.")] = None,
) -> None:
    """Make a ledger of a backup, and print its identity.

    What has left since the backup is not in it. The witness tells whether anything has. Without one, or if something
    has, --accept-loss PERIOD makes all periods up to that one void that are not released in the backup, and charges
    them in full.
    """
    from optstream.ledger import restore_ledger  # noqa: PLC0415

    if witness is None and accept_loss is None:
        raise UsageError("restore needs --witness URL, or --accept-loss PERIOD")
    identity = restore_ledger(source, target, key=key_file, witness=witness, accept_loss=accept_loss)
    emit(f"{identity}\n".encode())
    notice(f"restored {target}" + ("" if accept_loss is None else "; tell its witness and all who expect an identity"))


def accept_loss(
    *,
    location: Location,
    last: Annotated[int, typer.Argument(metavar="PERIOD", min=0, help="The last period that may have left.")],
    key_file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Curator's key.")] = None,
) -> None:
    """Note that a ledger was restored by other means, such as pg_restore, and charge what may have left in full."""
    with open_ledger(location, key=key_file) as ledger:
        ledger.forget_since(last)
    notice(f"periods up to {last} that are not released are void and charged in full")


Epsilon = Annotated[str, typer.Option(help="Budget of any window, such as 1 or 1/3.")]
Delta = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Allow this probability of failure, for Gaussian noise: 1e-6.")
]
Length = Annotated[int, typer.Option("--w", help="Length of a window, in steps.")]
Aligned = Annotated[bool, typer.Option("--aligned", help="Windows lie inside one period: weaker and cheaper.")]
Entities = Annotated[
    Literal["settled", "moving"], typer.Option(help="Whether they stay in one leaf of a hierarchy, or move.")
]
Entity = Annotated[str, typer.Option(metavar="WORD", help="What is protected, such as rider.")]
KeyFile = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Curator's key.")]
Step = Annotated[str | None, typer.Option(help="Length of a step, such as 30m.")]
Origin = Annotated[str | None, typer.Option(metavar="TIME", help="Where period 0 begins.")]


def create_pool(
    *,
    location: Location,
    name: Annotated[str, typer.Argument(help="The name of the pool, such as riders.")],
    epsilon: Annotated[str | None, typer.Option(help="Budget of any window, such as 1 or 1/3.")] = None,
    w: Annotated[int | None, typer.Option("--w", help="Length of a window, in steps.")] = None,
    delta: Delta = None,
    aligned: Aligned = False,
    entities: Entities = "settled",
    entity: Entity = "entity",
    plan: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Plan file whose [stream.NAME] become the members.")
    ] = None,
    step: Step = None,
    origin: Origin = None,
    key_file: KeyFile = None,
) -> None:
    """Make a pool: streams about the same people, which are held to one budget together.

    With a plan file its budget is that of the file, and its members are made too.
    """
    from optstream.mechanism.members import read_pool_plan  # noqa: PLC0415  (commands that need none start faster)

    members: Mapping[str, OptStream] = {}
    if plan is not None:
        if (epsilon, w, delta, aligned, entities, entity) != (None, None, None, False, "settled", "entity"):
            raise UsageError("--plan does not go with --epsilon, --w, --delta, --aligned, --entities or --entity")
        described = read_pool_plan(plan)
        policy, members = described.guarantee, described.members
    elif epsilon is None or w is None:
        raise UsageError("the pool is not described: give --epsilon and --w, or --plan FILE")
    else:
        policy = _policy(epsilon, w, 1.0, delta, aligned=aligned, entities=entities, entity=entity)
    clock = _clock(step, origin)
    with open_ledger(location, key=key_file) as ledger:
        ledger.create_pool(name, policy, clock=clock)
        for member, made in members.items():
            ledger.create_stream(member, made.guarantee, pool=name, clock=clock)
    shared = f"any {policy.w} steps of all its streams together cost at most epsilon = {shown(policy.epsilon)}"
    notice(f"made the pool {name!r}{' of ' if members else ''}{', '.join(members)}: {shared}")


def create_stream(
    *,
    location: Location,
    name: Annotated[str, typer.Argument(help="The name of the stream.")],
    epsilon: Epsilon,
    w: Length,
    alpha: Annotated[float, typer.Option(help="How much one entity may change one step.")] = 1.0,
    delta: Delta = None,
    aligned: Aligned = False,
    entities: Entities = "settled",
    entity: Entity = "entity",
    pool: Annotated[str | None, typer.Option(metavar="NAME", help="The pool that it is a member of.")] = None,
    step: Step = None,
    origin: Origin = None,
    key_file: KeyFile = None,
) -> None:
    """Make a stream, or make one that exists a member of a pool, with all that it was charged before."""
    policy = _policy(epsilon, w, alpha, delta, aligned=aligned, entities=entities, entity=entity)
    with open_ledger(location, key=key_file) as ledger:
        ledger.create_stream(name, policy, pool=pool, clock=_clock(step, origin))
    notice(f"made the stream {name!r}" + ("" if pool is None else f", a member of {pool!r}"))


def _policy(epsilon: str, w: int, alpha: float, delta: str | None, *, aligned: bool, **entities: Any) -> "Guarantee":
    from optstream.privacy.guarantee import Guarantee  # noqa: PLC0415

    def number(name: str, text: str) -> Fraction:
        try:
            return Fraction(text)
        except (ValueError, ZeroDivisionError):
            raise UsageError(f"--{name} is {text!r}, but must be a number such as 0.5 or 1/3") from None

    return Guarantee(
        epsilon=number("epsilon", epsilon),
        w=w,
        alpha=alpha,
        delta=0 if delta is None else number("delta", delta),
        neighbours="aligned" if aligned else "sliding",
        **entities,
    )


def _clock(step: str | None, origin: str | None) -> str | None:
    from optstream.cli.times import Grid  # noqa: PLC0415

    if (step is None) != (origin is None):
        raise UsageError("--step and --origin go together")
    return None if step is None else Grid(origin, step).clock()


def verify(*, location: Location, as_json: AsJson = False) -> None:
    """Check every row of a ledger, and every window against its policy. Exits with 7 if there is a problem."""
    with open_ledger(location) as ledger:
        found = ledger.verify()
    if as_json:
        counts = {"streams": found.streams, "charges": found.charges, "releases": found.releases}
        emit(f"{json.dumps(counts | {'problems': list(found.problems)}, indent=2)}\n".encode())
    else:
        summary = f"{found.streams} streams, {found.charges} charges, {found.releases} releases"
        lines = [f"{summary}: {len(found.problems) or 'no'} problem{'s' * (len(found.problems) != 1)}"]
        emit("\n".join([*lines, *(f"  - {problem}" for problem in found.problems), ""]).encode())
    if found.problems:
        raise typer.Exit(7)


def open_ledger(location: str, *, key: Path | None = None, create: bool = False) -> "Ledger":
    """Return a ledger; it is not made unless that is asked for, so that a wrong path is an error."""
    from optstream.ledger import Ledger  # noqa: PLC0415  (commands that need none start faster)

    return Ledger(location, key=key, create=create)


def _pool_account(ledger: "Ledger", name: str) -> dict[str, Any]:
    pool, left = ledger.pool(name), ledger.pool_remaining(name)
    return {
        "pool": name,
        "epsilon": str(pool.policy.epsilon),
        "delta": str(pool.policy.delta),
        "w": pool.policy.w,
        "members": list(pool.members),
        "remaining": str(left.epsilon),
    }


def _account(ledger: "Ledger", stream: str, *, periods: bool) -> dict[str, Any]:
    """Return the account of a stream as plain data, with exact rationals as texts."""
    policy, entries, left = ledger.policy(stream), ledger.history(stream), ledger.remaining(stream)
    account: dict[str, Any] = {
        "stream": stream,
        "policy": {
            "epsilon": str(policy.epsilon),
            "delta": str(policy.delta),
            "w": policy.w,
            "alpha": policy.alpha,
            "neighbours": policy.neighbours,
            "entities": policy.entities,
            "entity": policy.entity,
        },
        "charged": len(entries),
        "released": sum(entry.released is not None for entry in entries),
        "remaining": str(left.epsilon),
        "last_charge": _time(max((entry.charged for entry in entries), default=None)),
    }
    if periods:
        account["periods"] = [
            {
                "period": entry.period,
                "epsilon": str(entry.epsilon),
                "plan": entry.plan,
                "charged": _time(entry.charged),
                "released": _time(entry.released),
                "void": entry.void,
            }
            for entry in entries
        ]
        account["windows"] = [
            {"first": window.first, "last": window.last, "remaining": str(window.epsilon)} for window in left.windows
        ]
    return account


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _print_account(account: dict[str, Any]) -> None:
    policy = account["policy"]
    epsilon, window = shown(Fraction(policy["epsilon"])), f"{policy['neighbours']} windows of {policy['w']} steps"
    delta = "" if policy["delta"] == "0" else f" with delta {float(Fraction(policy['delta'])):g}"
    rows = [
        ("policy", f"epsilon {epsilon}{delta} in {window}, alpha {policy['alpha']:g}"),
        ("protects", f"one {policy['entity']} ({policy['entities']})"),
        ("periods charged", str(account["charged"])),
        ("periods released", str(account["released"])),
        ("least epsilon left", show_left(Fraction(account["remaining"]))),
        ("last charge", account["last_charge"] or "never"),
    ]
    print_table(account["stream"], ("", ""), rows)
    if account.get("periods"):
        lines = [
            (
                str(row["period"]),
                shown(Fraction(row["epsilon"])),
                row["plan"][:12],
                row["charged"],
                row["released"] or (f"void: {row['void']}" if row["void"] else "not yet"),
            )
            for row in account["periods"]
        ]
        print_table("periods", ("period", "epsilon", "plan", "charged", "released"), lines)
