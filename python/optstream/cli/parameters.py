"""The public parameters of a mechanism: a plan file, or flags in its place."""

import json
import tomllib
from collections.abc import Callable
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import typer

from optstream import _core
from optstream.cli.exits import UsageError
from optstream.errors import ParameterError
from optstream.mechanism.description import MECHANISMS
from optstream.mechanism.mechanism import Mechanism
from optstream.mechanism.members import read_pool_plan
from optstream.mechanism.optstream import OptStream
from optstream.mechanism.plan import build, read_plan
from optstream.pipeline.hierarchy import Hierarchy

__all__ = ["Build", "mechanism_of", "takes_mechanism"]

Build = partial[Mechanism]
"""Returns the mechanism of the command line; ``plan=`` names another plan file."""

option = partial(typer.Option, rich_help_panel="Mechanism", show_default=False)
existing = partial(option, exists=True, dir_okay=False)


def mechanism_of(
    *,
    plan: Annotated[
        Path | None, existing(help="Plan file in TOML. No flag below goes with it but --hierarchy.")
    ] = None,
    member: Annotated[
        str | None, option(metavar="NAME", help="Which [stream.NAME] of the plan file, if it describes several.")
    ] = None,
    mechanism: Annotated[
        str | None,
        option(metavar="NAME", help=f"Another mechanism than OptStream: {', '.join(sorted(MECHANISMS))}."),
    ] = None,
    epsilon: Annotated[str | None, option(metavar="NUMBER", help="Budget of a window: 0.5, or 1/3.")] = None,
    w: Annotated[int | None, option(help="Steps of a window, and of a period.")] = None,
    alpha: Annotated[float | None, option(help="How much one entity may change one step.")] = None,
    delta: Annotated[
        str | None, option(metavar="NUMBER", help="Allow this probability of failure, for Gaussian noise: 1e-6.")
    ] = None,
    lower: Annotated[float | None, option(help="Public lower bound of the values.")] = None,
    upper: Annotated[float | None, option(help="Public upper bound of the values.")] = None,
    k: Annotated[int | None, option(help="How many steps of a period are measured, or buckets.")] = None,
    sample: Annotated[
        Literal["equal", "l1", "bucket"] | None,
        option(help="What is measured: equally spaced steps (the default), chosen ones, or means of buckets."),
    ] = None,
    noise: Annotated[
        Literal["laplace", "cube", "gaussian"] | None,
        option(
            help="Noise on what is measured. Cube is less, in blocks; Gaussian far less in long windows, with --delta."
        ),
    ] = None,
    estimate: Annotated[
        bool, option("--estimate", help="Estimate values from all that was released so far, at no further cost.")
    ] = False,
    auto: Annotated[
        bool, option("--auto", help="Choose what is measured, now and later from releases; in place of --k and others.")
    ] = False,
    threshold: Annotated[float | None, option(help="L1 error that makes --sample l1 measure a step.")] = None,
    feature: Annotated[
        list[str] | None,
        option(metavar="CUTS", help="Sums to release too: '14,24,36' cuts a period there, 'total' adds up all of it."),
    ] = None,
    neighbours: Annotated[
        Literal["sliding", "aligned"] | None,
        option(help="Protect any window (sliding, the default), or only those inside one period."),
    ] = None,
    entities: Annotated[
        Literal["settled", "moving"] | None,
        option(
            help="Whether entities stay in one leaf of --hierarchy (settled, the default) or may be in any (moving)."
        ),
    ] = None,
    entity: Annotated[
        str | None, option(metavar="WORD", help="What is protected, such as rider; statements say it.")
    ] = None,
    calibration: Annotated[
        Literal["sound", "paper"] | None, option(help="Scales of the noise. 'paper' costs more than --epsilon.")
    ] = None,
    split: Annotated[
        str | None, option(metavar="SHARES", help="Shares of the budget for sample, perturb, features: '1,1,1'.")
    ] = None,
    integers: Annotated[bool, option("--integers", help="Round released values to whole numbers; it is free.")] = False,
    hierarchy: Annotated[
        Path | None,
        existing(help="Tree of groups: nested tables in TOML or JSON, or CSV with one column per level, root first."),
    ] = None,
) -> Mechanism:
    """Return the mechanism of a plan file, or else of the flags."""
    flags: dict[str, Any] = {
        "mechanism": mechanism,
        "epsilon": epsilon,
        "w": w,
        "alpha": alpha,
        "delta": delta,
        "lower": lower,
        "upper": upper,
        "k": k,
        "sample": sample,
        "noise": noise,
        "estimate": estimate or None,
        "auto": auto or None,
        "threshold": threshold,
        "feature": feature or None,
        "neighbours": neighbours,
        "entities": entities,
        "entity": entity,
        "calibration": calibration,
        "split": split,
        "integers": integers or None,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    if plan is not None and given:
        raise UsageError(f"--{next(iter(given))} does not go with --plan: change the plan file instead")
    if member is not None and plan is None:
        raise UsageError("--member needs --plan, a file with the table [stream.NAME]")
    made = _planned(plan, member) if plan is not None else build(_plan(given))
    if hierarchy is None:
        return made
    if made.hierarchy is not None:
        raise UsageError("--hierarchy does not go with --plan: the plan file has a hierarchy")
    if not isinstance(made, OptStream):
        raise UsageError("--hierarchy does not go with --mechanism: it releases one series")
    # The default grid depends on how many leaves there are.
    usual = made.grid == _core.default_grid(made.guarantee.alpha)
    grid = None if usual else made.grid
    return made.changed(hierarchy=read_hierarchy(hierarchy), level_split=None, grid=grid)


def _planned(plan: Path, member: str | None) -> Mechanism:
    if member is None:
        return read_plan(plan)
    members = read_pool_plan(plan).members
    if member not in members:
        raise UsageError(f"--member is {member!r}, but must be one of {', '.join(members)}")
    return members[member]


def takes_mechanism(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a mechanism; it takes them as one argument, ``build``."""
    own, shared = signature(command), signature(mechanism_of)

    @wraps(command)
    def run(**given: Any) -> None:
        flags = {name: given.pop(name) for name in shared.parameters}
        command(build=partial(mechanism_of, **flags), **given)

    parameters = [parameter for name, parameter in own.parameters.items() if name != "build"]
    run.__signature__ = own.replace(parameters=[*parameters, *shared.parameters.values()])  # type: ignore[attr-defined]
    return run


def read_hierarchy(path: Path) -> Hierarchy:
    """Return the tree of a file: nested tables in TOML or JSON, or CSV with a column per level.

    Raises:
        ParameterError: The file holds something else.
    """
    kind = path.suffix.lower()
    if kind not in {".toml", ".json", ".csv"}:
        raise UsageError(f"--hierarchy is {path}, but must end in .toml, .json or .csv")
    try:
        if kind == ".csv":
            frame = pl.read_csv(path.read_bytes(), infer_schema=False)
            return Hierarchy.from_frame(frame, frame.columns)
        text = path.read_text(encoding="utf-8")
        return Hierarchy.nested(json.loads(text) if kind == ".json" else tomllib.loads(text))
    except ParameterError:
        raise
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"hierarchy {path} is no tree of named nodes with leaves in arrays: {error}") from None
    except pl.exceptions.PolarsError as error:
        raise ParameterError(f"hierarchy {path} is not CSV, but must be: {error}") from None


def _plan(given: dict[str, Any]) -> dict[str, Any]:
    """Return the content that a plan file would have."""
    other = given.get("mechanism")
    needed = ("epsilon", "w", "alpha", "lower", "upper", *(() if "auto" in given or other else ("k",)))
    missing = [f"--{name}" for name in needed if name not in given]
    if missing:
        wanted = "--plan FILE" if len(missing) == len(needed) else f"{' '.join(missing)}, or --plan FILE instead"
        raise UsageError(f"the mechanism is not described: give {wanted}")
    content: dict[str, Any] = {
        name: given[name]
        for name in ("epsilon", "w", "alpha", "delta", "neighbours", "entities", "entity", "calibration", "integers")
        if name in given
    }
    bounds = [given["lower"], given["upper"]]
    if other is not None:
        own = {name: given[name] for name in ("mechanism", "k", "threshold") if name in given}
        unfit = next((name for name in given if name not in {*content, *own, "lower", "upper"}), None)
        if unfit is not None:
            raise UsageError(f"--{unfit} does not go with --mechanism: give a plan file with its parameters")
        return content | own | {"bounds": bounds}
    content |= {
        "bounds": bounds,
        "features": [_cuts(text) for text in given.get("feature", [])],
    }
    if "auto" in given:
        chosen = next((n for n in ("k", "sample", "noise", "threshold", "split", "estimate") if n in given), None)
        if chosen is not None:
            raise UsageError(f"--{chosen} does not go with --auto, which chooses it")
        return content | {"sample": {"kind": "auto"}}
    return content | {
        "sample": {"kind": given.get("sample", "equal")}
        | {name: given[name] for name in ("k", "threshold") if name in given},
        "perturb": {"kind": given.get("noise", "laplace")},
        "reconstruct": {"kind": "estimate" if "estimate" in given else "linear"},
        "split": given["split"].split(",") if "split" in given else None,
    }


def _cuts(text: str) -> list[int]:
    try:
        return [] if text.strip() in {"", "total"} else [int(cut) for cut in text.split(",")]
    except ValueError:
        raise UsageError(f"--feature is {text!r}, but must be steps such as 14,24,36, or total") from None
