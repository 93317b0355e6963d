"""A few of the kills of tools/kills.py, on both kinds of database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "kills.py"
KILLS = 50


@pytest.mark.slow
def test_kills_on_all_paths_lose_nothing(postgres_url: str) -> None:
    """Single, pushed, bulk and pooled releases, in forks and daemons, with a backup that is restored in between."""
    done = subprocess.run(
        [sys.executable, TOOL, "--kills", str(KILLS), "--postgres", postgres_url],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    nothing = "0 second forms, 0 windows over policy, 0 lost charges, 0 problems"
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["SQLite", "PostgreSQL"]
    assert all(line.endswith(nothing) and f"{KILLS} kills" in line for line in lines)
