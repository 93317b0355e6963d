"""How close releases come to the truth, beside the plain Laplace mechanism with the same guarantee, on real streams.

    python tools/accuracy.py --data DIR [--trials N] [--streams PREFIX ...] [-o FOLDER]
    python tools/accuracy.py --data DIR --delta 1e-6 [--w STEPS] [--trials N] [--streams PREFIX ...] [-o FOLDER]
    python tools/accuracy.py --data DIR --emit step [--trials N] [--streams PREFIX ...] [-o FOLDER]
    python tools/accuracy.py --made [--trials N] [--streams PREFIX ...] [-o FOLDER]

For every stream and epsilon, with alpha = 1 and windows that slide, the whole series is released period by period, each
from what was released before. A stream with a public year before it is tuned on that; all others start from the rule of
thumb and tune themselves on their own releases. No parameter is chosen by hand. Writes a table (Markdown, CSV) and a
picture. With --made the streams are those that the tests make, each with its worst four weeks. With --delta every
stream is released with a pure guarantee and with that delta, side by side, in windows of a day or of --w steps. With
--emit step every value leaves when its step has come, beside all mechanisms of the library that do so.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import sys
import time
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import streams

import optstream as ops
from optstream import baselines
from optstream.errors import DataError
from optstream.reproduce.data import Folder

if TYPE_CHECKING:
    from optstream.reproduce.data import Stream

EPSILONS = ("1", "0.1", "0.01")
LEVEL = 0.9
WORST, COVERED = 1.3, 0.85
"""Bars of the streams that the tests make."""


@dataclass(frozen=True)
class Result:
    """What a stream came to at one epsilon, mean absolute errors over all trials."""

    stream: str
    w: int
    epsilon: str
    start: str
    laplace: float
    clamped: float
    ours: float
    spread: float
    covered: float
    buckets: str
    seconds: float
    delta: str = "0"
    noise: str = ""

    @property
    def ratio(self) -> float:
        """How many times closer than the plain Laplace mechanism."""
        return self.laplace / self.ours


def measure(job: tuple[Stream, str, str, int]) -> Result:
    """Release a stream several times."""
    stream, epsilon, delta, trials = job
    guarantee = ops.Guarantee(epsilon=float(epsilon), w=stream.w, delta=float(delta))
    bounds, x = (0.0, stream.upper), stream.x
    begin = time.process_time()
    state = None
    if stream.history is None:
        mechanism = ops.OptStream.auto(guarantee, bounds=bounds)
    else:
        found = ops.tune(guarantee, stream.history, bounds=bounds)
        mechanism, state = found.mechanism, found.state
    errors, covered, counts, noises = [], [], [], set()
    for _ in range(trials):
        release = mechanism.release(x, state=state)
        errors.append(np.abs(release.values - x).mean())
        low, high = release.interval(LEVEL)
        rows = x.reshape(-1, stream.w)
        covered.append(((low <= rows) & (rows <= high)).mean())
        choice = release.state["memory"]["choice"]
        counts.append(choice["sample"]["k"])
        noises.add(choice["perturb"]["kind"])
    seconds = (time.process_time() - begin) / trials
    plain = ops.OptStream(guarantee, sample=ops.EqualSampling(stream.w), bounds=bounds)
    laplace = [plain.release(x).values for _ in range(max(trials, 30))]
    low_k, high_k = min(counts), max(counts)
    return Result(
        stream=stream.name,
        w=stream.w,
        epsilon=epsilon,
        start="itself" if stream.history is None else "the year before",
        laplace=float(np.mean([np.abs(values - x).mean() for values in laplace])),
        clamped=float(np.mean([np.abs(np.clip(values, *bounds) - x).mean() for values in laplace])),
        ours=float(np.mean(errors)),
        spread=float(np.std(errors)),
        covered=float(np.mean(covered)),
        buckets=str(low_k) if low_k == high_k else f"{low_k} to {high_k}",
        seconds=seconds,
        delta=delta,
        noise=", ".join(sorted(noises)),
    )


def recut(stream: Stream, w: int) -> Stream:
    """Return a stream in periods of another length; what does not fill one is left out, far from where history ends."""
    history = stream.history
    if history is not None:
        history = history[len(history) % w :]
    return replace(stream, w=w, x=stream.x[: len(stream.x) - len(stream.x) % w], history=history)


def beside(results: list[Result]) -> str:
    """Return in Markdown how much closer a delta brings releases than a pure guarantee."""
    pure = {(row.stream, row.epsilon): row for row in results if float(row.delta) == 0}
    head = "stream | w | epsilon | plain Laplace | pure | with delta | closer than plain | than pure | covered | noise"
    lines = [f"| {head} |", "| --- |" + " --: |" * 8 + " --- |"]
    for row in results:
        if row not in pure.values() and (row.stream, row.epsilon) in pure:
            other = pure[row.stream, row.epsilon]
            lines.append(
                f"| {row.stream} | {row.w} | {row.epsilon} | {row.laplace:.4g} | {other.ours:.4g} ± {other.spread:.2g} "
                f"| {row.ours:.4g} ± {row.spread:.2g} | {row.ratio:.3g} | {other.ours / row.ours:.3g} "
                f"| {100 * row.covered:.0f} % | {row.noise}, {row.buckets} |"
            )
    return "\n".join(lines) + "\n"


BY_STEP = ("Laplace", "BudgetDistribution", "BudgetAbsorption", "PeGaSus", "RescueDP", "Fast", "Sample")
"""Mechanisms of the library that release every step as it comes, but for sums."""


@dataclass(frozen=True)
class StepResult:
    """What a stream came to at one epsilon if every value leaves with its step: mean absolute errors."""

    stream: str
    w: int
    epsilon: str
    start: str
    laplace: float
    best: str
    best_error: float
    ours: float
    spread: float
    covered: float
    measured: str
    seconds: float


def measure_steps(job: tuple[Stream, str, int]) -> StepResult:
    """Release a stream step by step several times, by auto or tuned on the year before, and by all others."""
    stream, epsilon, trials = job
    guarantee = ops.Guarantee(epsilon=float(epsilon), w=stream.w)
    bounds, x, state = (0.0, stream.upper), stream.x, None
    begin = time.process_time()
    if stream.history is None:
        mechanism = ops.OptStream.auto(guarantee, bounds=bounds, emit="step")
    else:
        found = ops.tune(guarantee, stream.history, bounds=bounds, emit="step")
        mechanism, state = found.mechanism, found.state
    errors, covered = [], []
    for _ in range(trials):
        release = mechanism.release(x, state=state, emit="step")
        errors.append(np.abs(release.values - x).mean())
        low, high = release.interval(LEVEL)
        rows = x.reshape(-1, stream.w)
        covered.append(((low <= rows) & (rows <= high)).mean())
    seconds = (time.process_time() - begin) / trials
    others = {}
    for name in BY_STEP:
        made = getattr(baselines, name)(guarantee, bounds=bounds)
        # Clamped, which makes each of them better.
        released = [np.clip(made.release(x).values, *bounds) for _ in range(trials)]
        others[name] = float(np.mean([np.abs(values - x).mean() for values in released]))
    best = min(others, key=lambda name: others[name])
    return StepResult(
        stream=stream.name,
        w=stream.w,
        epsilon=epsilon,
        start="auto" if stream.history is None else "the year before",
        # Before clamping the mean absolute value of the noise is its scale.
        laplace=float(stream.w / guarantee.epsilon),
        best=best,
        best_error=others[best],
        ours=float(np.mean(errors)),
        spread=float(np.std(errors)),
        covered=float(np.mean(covered)),
        measured=f"{mechanism.sample.k} {type(mechanism.perturb).__name__.removesuffix('Noise').lower()}",
        seconds=seconds,
    )


def step_table(results: list[StepResult]) -> str:
    """Return all results in Markdown."""
    head = "stream | epsilon | plain Laplace | best other | per step | closer by | than the other | covered | measured"
    lines = [f"| {head} | seconds |", "| --- |" + " --: |" * 9]
    lines += [
        f"| {row.stream} | {row.epsilon} | {row.laplace:.4g} | {row.best_error:.4g} ({row.best}) "
        f"| {row.ours:.4g} ± {row.spread:.2g} | {row.laplace / row.ours:.3g} | {row.best_error / row.ours:.3g} "
        f"| {100 * row.covered:.0f} % | {row.measured} | {row.seconds:.1f} |"
        for row in results
    ]
    return "\n".join(lines) + "\n"


def steps(jobs: list[tuple[Stream, str, int]], processes: int, folder: Path) -> int:
    """Measure releases step by step; return 1 if another mechanism is better somewhere."""
    results: list[StepResult] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for result in tqdm(pool.imap(measure_steps, jobs), total=len(jobs), desc="measuring", disable=None):
            results.append(result)
            (folder / "steps.md").write_text(step_table(results))
    print(step_table(results), end="")
    worse = [row for row in results if row.best_error < row.ours]
    for row in worse:
        print(f"worse than {row.best}: {row.stream} at epsilon {row.epsilon}", file=sys.stderr)
    return 1 if worse else 0


def table(results: list[Result]) -> str:
    """Return all results in Markdown."""
    head = "stream | epsilon | plain Laplace | clamped | ours | closer by | than clamped | covered | buckets | seconds"
    lines = [f"| {head} |", "| --- |" + " --: |" * 9]
    lines += [
        f"| {row.stream} | {row.epsilon} | {row.laplace:.4g} | {row.clamped:.4g} | {row.ours:.4g} ± {row.spread:.2g} "
        f"| {row.ratio:.3g} | {row.clamped / row.ours:.3g} | {100 * row.covered:.0f} % | {row.buckets} of {row.w} "
        f"| {row.seconds:.1f} |"
        for row in results
    ]
    return "\n".join(lines) + "\n"


def draw(results: list[Result], path: Path) -> None:
    """Draw how many times closer each stream comes."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    names = list(dict.fromkeys(row.stream for row in results))
    figure = Figure(figsize=(9, 1.5 + 0.22 * len(names)), layout="constrained")
    axes = figure.subplots()
    for index, epsilon in enumerate(EPSILONS):
        rows = [row for row in results if row.epsilon == epsilon]
        places = [names.index(row.stream) for row in rows]
        axes.plot([row.ratio for row in rows], places, "o", color=f"C{index}", label=f"epsilon = {epsilon}")
        clamped = [row.clamped / row.ours for row in rows]
        axes.plot(clamped, places, "|", color=f"C{index}", markersize=9)
    axes.axvline(1, color="black", linewidth=1)
    axes.set(xscale="log", xlabel="times closer than plain Laplace noise (bar: than that clamped to the bounds)")
    axes.set_yticks(range(len(names)), names, fontsize="small")
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper right")
    figure.savefig(path, dpi=110)


def write(results: list[Result], folder: Path) -> None:
    """Write what there is so far."""
    order = {key: place for place, key in enumerate(dict.fromkeys((row.stream, row.epsilon) for row in results))}
    results = sorted(results, key=lambda row: (row.stream, order[row.stream, row.epsilon]))
    (folder / "accuracy.md").write_text(table(results))
    if any(float(row.delta) for row in results):
        (folder / "delta.md").write_text(beside(results))
    with (folder / "accuracy.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([field.name for field in fields(Result)])
        rows.writerows(astuple(row) for row in results)


def measure_made(job: tuple[streams.Made, float, int]) -> str:
    """Return a row of the table of streams that the tests make."""
    stream, epsilon, trials = job
    found = streams.measure(stream, epsilon, trials)
    kept = found.worst <= WORST and found.covered >= COVERED
    return (
        f"| {stream.name} | {epsilon:g} | {found.clamped:.4g} | {found.ours:.4g} | {found.worst:.2f} "
        f"| {100 * found.covered:.0f} % | {'yes' if kept else 'no'} |"
    )


def made(trials: int, names: tuple[str, ...], processes: int, folder: Path) -> int:
    """Measure the streams that the tests make; return 1 if one is beyond its bar."""
    chosen = [stream for stream in streams.STREAMS if stream.name.startswith(names)]
    jobs = [(stream, epsilon, trials) for stream in chosen for epsilon in (0.1, 1.0, 10.0)]
    rows = [
        "| stream | epsilon | clamped | ours | worst four weeks | covered | within the bars |",
        "| --- |" + " --: |" * 6,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for row in tqdm(pool.imap(measure_made, jobs), total=len(jobs), desc="measuring", disable=None):
            rows.append(row)
            (folder / "made.md").write_text("\n".join(rows) + "\n")
    print("\n".join(rows))
    return 1 if any(row.endswith("no |") for row in rows) else 0


def main() -> int:
    """Measure everything and return 1 if a stream came out worse than plain Laplace noise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with the streams (see docs/accuracy.md)")
    source.add_argument("--made", action="store_true", help="the streams that the tests make")
    parser.add_argument("--emit", choices=("period", "step"), default="period", help="when values leave")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--streams", nargs="*", default=[""], help="beginnings of names")
    parser.add_argument("--delta", help="release with this delta too, beside the pure guarantee")
    parser.add_argument("--w", type=int, help="steps of a window and a period, instead of those of a day")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/accuracy"))
    options = parser.parse_args()
    if options.made:
        return made(options.trials, tuple(options.streams), options.processes, options.output)
    try:
        real = Folder(options.data).streams()
    except DataError as error:
        print(f"no data: {error}", file=sys.stderr)
        return 2
    options.output.mkdir(parents=True, exist_ok=True)
    chosen = [stream for stream in real if stream.name.startswith(tuple(options.streams))]
    if options.w is not None:
        chosen = [recut(stream, options.w) for stream in chosen]
    if options.emit == "step":
        by_step = [(stream, epsilon, options.trials) for stream in chosen for epsilon in EPSILONS]
        return steps(by_step, options.processes, options.output)
    deltas = ["0"] + ([options.delta] if options.delta else [])
    jobs = [
        (stream, epsilon, delta, options.trials)
        for stream, epsilon, delta in itertools.product(chosen, EPSILONS, deltas)
    ]
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for result in tqdm(pool.imap(measure, jobs), total=len(jobs), desc="measuring", disable=None):
            results.append(result)
            write(results, options.output)
    if options.delta:
        print(beside(results), end="")
    else:
        draw(results, options.output / "accuracy.png")
        print(table(results), end="")
    worse = [row for row in results if min(row.laplace, row.clamped) < row.ours]
    for row in worse:
        print(f"worse than Laplace: {row.stream} at epsilon {row.epsilon}, delta {row.delta}", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
