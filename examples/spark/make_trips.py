"""Write synthetic trips of two days, a Parquet file for each: python make_trips.py FOLDER."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
from trips import FIRST, ZONES


def main() -> None:
    """Write the trips of every day."""
    folder, generator = Path(sys.argv[1]), np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    start, count = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC), 20_000
    for day in range(2):
        riders = generator.integers(0, 2_000, count)
        seconds = np.sort(generator.normal(14, 5, count) % 24 * 3600)
        frame = pl.DataFrame(
            {
                "rider": riders,
                # The last zone has no trips: it comes from the public list.
                "home": [ZONES[rider % 3] for rider in riders],
                "zone": [ZONES[zone] for zone in generator.integers(0, len(ZONES) - 1, count)],
                "at": [start + timedelta(days=day, seconds=float(second)) for second in seconds],
            }
        )
        frame.write_parquet(folder / f"{day}.parquet")


if __name__ == "__main__":
    main()
