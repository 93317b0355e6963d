"""The script that gives the tests a PostgreSQL server: what it promises to those who call it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SKIP = 77
SCRIPT = Path(__file__).parents[2] / "tools" / "postgres"


def run(script: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    unset = {"CI", "OPTSTREAM_TEST_POSTGRES", "PGBIN"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | variables
    return subprocess.run([script, command], env=environment, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Copy the script into a clone of its own, whose server is not the one that other tests use."""
    (tmp_path / "tools").mkdir()
    return Path(shutil.copy(SCRIPT, tmp_path / "tools"))


def test_a_server_of_the_user_is_used_as_it_is(script: Path) -> None:
    for command in ("start", "url"):
        result = run(script, command, OPTSTREAM_TEST_POSTGRES="postgresql://mine/db")
        assert (result.returncode, result.stdout) == (0, "postgresql://mine/db\n")


@pytest.mark.parametrize(("ci", "code"), [("", SKIP), ("false", SKIP), ("true", 1)])
def test_a_missing_server_skips_except_in_continuous_integration(script: Path, ci: str, code: int) -> None:
    result = run(script, "start", CI=ci, PGBIN="/nowhere")
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr


def test_one_server_serves_all_and_comes_back_after_a_crash(script: Path) -> None:
    try:
        # Output that is captured also shows that the server does not hold the caller's output open.
        with ThreadPoolExecutor() as pool:
            results = list(pool.map(lambda _: run(script, "start"), range(3)))
        if results[0].returncode == SKIP:
            pytest.skip(results[0].stderr)
        url = results[0].stdout
        assert [(result.returncode, result.stdout) for result in results] == [(0, url)] * 3
        data = Path((script.parent.parent / "build" / "postgres" / "data").read_text().strip())
        os.kill(int((data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        assert run(script, "start").stdout == run(script, "url").stdout == url
        assert (data / "PG_VERSION").exists()
    finally:
        assert run(script, "stop").returncode == 0
    assert not data.parent.exists()
    assert run(script, "url").returncode == 1
