"""Trips by zone, from Parquet to private Parquet: one day with every run, the same values with every repetition.

    python trips.py --events EVENTS --target TARGET --ledger LEDGER --key KEY --day 2024-03-01

Exit codes: 0 released, now or before; 1 refused, or failed in Spark; 2 a parameter is wrong.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, date, datetime, timedelta

from pyspark.sql import SparkSession

import optstream as ops
from optstream import spark

ZONES = [f"zone {number}" for number in range(1, 21)]
FIRST = date(2024, 3, 1)
HOURS = 24
MECHANISM = ops.OptStream(
    ops.Guarantee(epsilon=1, w=HOURS, alpha=2),
    sample=ops.EqualSampling(HOURS),
    perturb=ops.CubeNoise(),
    bounds=(0, 100_000),
    integers=True,
)


def session(name: str) -> SparkSession:
    """Return the session: that of the cluster, or one of this machine alone."""
    return SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC").getOrCreate()


def release(given: argparse.Namespace) -> spark.Job:
    """Release one day of all zones."""
    start = datetime(given.day.year, given.day.month, given.day.day, tzinfo=UTC)
    trips = session("trips").read.parquet(given.events)
    # A rider counts in two zones an hour at most; whether there was any activity in a day is what is hidden.
    sums = spark.aggregate(
        trips,
        entity="rider",
        time="at",
        step="1h",
        start=start,
        stop=start + timedelta(days=1),
        group="zone",
        groups=ZONES,
        max_groups=2,
        alpha=2,
        change="presence",
    )
    with ops.Ledger(given.ledger, key=given.key, create=True) as ledger:
        return spark.release(
            MECHANISM,
            sums,
            ledger=ledger,
            key=given.key,
            target=f"{given.target}/day={given.day}",
            period=(given.day - FIRST).days,
        )


def main() -> int:
    """Release a day; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("events", "target", "ledger", "key"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--day", required=True, type=date.fromisoformat)
    try:
        job = release(parser.parse_args())
    except (ops.ParameterError, ops.ParameterTypeError) as error:
        print(error, file=sys.stderr)
        return 2
    except ops.OptStreamError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"{job.charged} of {job.periods} periods are charged now; epsilon {job.statement.epsilon_shown}; {job.values}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
