"""The full audit: every mechanism that ships, and every known-broken one, with the table that docs/audit.md shows.

    python tools/audit.py [--quick] [-o FILE.md]

Primitives run 10^7 times and more, whole periods 10^6 times and more. Rows are printed and written as they come.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tqdm.auto import tqdm

from optstream import OptStream
from optstream.audit import Audit, audit, pairs_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from broken import VARIANTS, Broken
from shipped import PERIODS, PRIMITIVES, Shipped

PRIMITIVE_RUNS, PERIOD_RUNS, FEWEST = 10_000_000, 1_000_000, 1000
FAST = 10
"""How many times as often what is fast runs: its loss is then proven more tightly at little cost."""
HEADS = {
    "shipped": "| mechanism | claimed epsilon | proven lower bound | runs | worst neighbours | verdict |\n"
    "| --- | --: | --: | --: | --- | --- |",
    "broken": "\n| known-broken variant | mistake | claimed epsilon | proven lower bound | runs | worst neighbours "
    "| verdict |\n| --- | --- | --: | --: | --: | --- | --- |",
}


def run(case: Shipped | Broken, trials: int) -> Audit:
    """Audit one mechanism; forked processes share what is slow."""
    return audit(
        case.mechanism,
        trials=trials,
        claimed=case.claimed,
        neighbours=case.neighbours,
        likelihood=case.likelihood if isinstance(case, Shipped) else None,
        processes=2 if isinstance(case, Shipped) else 1,
        name=case.name,
    )


def row(case: Shipped | Broken, found: Audit) -> str:
    """Return a line of the table."""
    best = max(found.attacks, key=lambda attack: attack.proven)
    mistake = f" | {case.mistake}" if isinstance(case, Broken) else ""
    figures = f"{found.claimed:.4g} | {found.proven:.3f} | {found.runs:,}"
    return f"| {found.mechanism}{mistake} | {figures} | {best.neighbours} | {found.verdict} |"


def trials_of(case: Shipped, runs: int) -> int:
    """Return how often each input of each pair runs, so that the whole audit runs at least so often."""
    pairs = len(pairs_of(case.mechanism) if isinstance(case.mechanism, OptStream) else case.neighbours or ())
    return max(-(-runs * (1 if case.slow else FAST) // (2 * pairs)), FEWEST)


def main() -> int:
    """Audit everything, print both tables and return 1 if a verdict is not what it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="also write the tables to this file")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the runs")
    options = parser.parse_args()
    share = 100 if options.quick else 1
    primitives = [(case, trials_of(case, PRIMITIVE_RUNS // share)) for case in PRIMITIVES]
    periods = [(case, trials_of(case, PERIOD_RUNS // share)) for case in PERIODS]
    tables: dict[str, list[tuple[Shipped | Broken, int]]] = {
        "shipped": [*primitives, *periods],
        "broken": [(variant, variant.trials) for variant in VARIANTS],
    }

    start = time.perf_counter()
    wrong = []
    with ExitStack() as stack:
        files = [sys.stdout]
        if options.output is not None:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            files.append(stack.enter_context(options.output.open("w", encoding="utf-8")))

        def write(line: str) -> None:
            for file in files:
                tqdm.write(line, file=file)
                file.flush()

        for table, expected in (("shipped", "consistent"), ("broken", "broken")):
            write(HEADS[table])
            for case, trials in tqdm(tables[table], desc=table, unit="mechanism", disable=None):
                found = run(case, trials)
                write(row(case, found))
                tqdm.write(str(found), file=sys.stderr)
                wrong += [found.mechanism] * (found.verdict != expected)
    print(f"{time.perf_counter() - start:.0f} s; wrong verdicts: {', '.join(wrong) or 'none'}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
