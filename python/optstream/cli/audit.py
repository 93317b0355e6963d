"""``optstream audit``: attack a mechanism, and say what the evidence proves."""

from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.display import print_table
from optstream.cli.exits import emit, notice
from optstream.cli.outputs import Outputs
from optstream.cli.parameters import Build, takes_mechanism

__all__ = ["audit"]

BROKEN = 7


@takes_mechanism
def audit(
    *,
    build: Build,
    trials: Annotated[
        int, typer.Option(min=1000, help="Runs on each input of each pair of neighbours. More prove more.")
    ] = 100_000,
    confidence: Annotated[
        float, typer.Option(help="Probability that nothing proven is false, all pairs together.")
    ] = 0.999,
    claimed: Annotated[
        float | None, typer.Option(help="Epsilon to hold against. By default what the mechanism states.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Pairs that are worked on at a time.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Write a picture: claimed and proven epsilon of each pair.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a report in Markdown.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Attack a mechanism and report the largest epsilon that the evidence proves, beside the claimed one.

    The mechanism runs on neighbouring streams chosen to hurt. Needs no data and spends nothing.

    Ends with exit code 7 if more is proven than claimed. Nothing found does not prove that a promise is kept.
    """
    from optstream.audit import audit as attack  # noqa: PLC0415
    from optstream.pictures import empty_figure  # noqa: PLC0415

    plan, mechanism = build.keywords["plan"], build()
    kind = "png" if plot is None else plot.suffix.lstrip(".") or "png"
    if plot is not None:
        # What cannot be drawn is found before the work, not after it.
        empty_figure(kind)
    with Outputs(plan) as outputs:
        picture, report = (None if path is None else outputs.prepare(path) for path in (plot, output))
        found = attack(
            mechanism,
            trials=trials,
            confidence=confidence,
            claimed=claimed,
            processes=processes,
            name="OptStream" if plan is None else plan.name,
        )
        if picture is not None:
            picture.write(found.picture(kind))
        if report is not None:
            report.write(f"{found.to_markdown()}\n".encode())
    if as_json:
        emit(f"{found.to_json()}\n".encode())
    else:
        rows = [
            (
                attack.neighbours,
                f"{found.claimed:.4g}",
                f"{attack.proven:.4f}",
                f"{attack.estimate:.4f}",
                "BROKEN" if attack.proven > found.claimed else "consistent",
                attack.statistic,
            )
            for attack in found.attacks
        ]
        header = ("neighbours", "claimed", "proven", "estimate", "verdict", "event")
        print_table(f"{found.mechanism}: {found.verdict}", header, rows)
        notice(
            f"{found.verdict}: epsilon is at least {found.proven:.4f} with confidence {confidence:g}, claimed is "
            f"{found.claimed:.4g}; {found.runs:,} runs"
        )
    if found.verdict == "broken":
        raise typer.Exit(BROKEN)
