"""The walk-throughs of the command line run, block after block, as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def section(heading: str) -> str:
    """Return a section of the README."""
    return (ROOT / "README.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("text", "least", "files"),
    [
        (section("From the command line"), 1, {"series.csv", "private.csv", "trips.db", "curator.key"}),
        (
            (ROOT / "docs" / "command-line.md").read_text(),
            10,
            {"private.csv", "statement.txt", "releases.jsonl", "nodes.csv", "release.json"},
        ),
        pytest.param(
            (ROOT / "docs" / "people.md").read_text(),
            5,
            {"private-trips.csv", "private-fares.csv", "rides.db"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["readme", "document", "people"],
)
def test_the_walk_through_runs_in_an_empty_folder(tmp_path: Path, text: str, least: int, files: set[str]) -> None:
    names = {name for name in os.environ if name.startswith(("OPTSTREAM", "_OPTSTREAM"))}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    # Other Python runs with that of all documents.
    blocks = re.findall(r"^```(sh|toml|python(?=\n# \S+\.py\n))\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= least
    for kind, block in blocks:
        if kind != "sh":
            named = re.match(r"# (\S+)\n", block)
            assert named, f"a TOML block does not begin with the name of its file:\n{block}"
            (tmp_path / named[1]).write_text(block)
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    assert files <= {path.name for path in tmp_path.iterdir()}
