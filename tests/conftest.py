"""What tests need from outside: databases, a browser, a small disk."""

from __future__ import annotations

import os
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """Return the URL of a running server; skip without one, but never in continuous integration."""
    if url := os.environ.get("OPTSTREAM_TEST_POSTGRES"):
        return url
    started = subprocess.run([ROOT / "tools/postgres", "start"], capture_output=True, text=True, check=False)
    if started.returncode == 77:
        pytest.skip(f"no PostgreSQL: {started.stderr.strip()}")
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a real browser; skip without one, but never in continuous integration."""
    found = subprocess.run([ROOT / "tools/chromium"], capture_output=True, text=True, check=False)
    if found.returncode == 77:
        pytest.skip(f"no browser: {found.stderr.strip()}")
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """Return the URL of an empty database."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
    yield postgres_server.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(postgres_server, autocommit=True) as server:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return where a new ledger may be made, in both kinds of database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a small disk of its own, or skips without the right to."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk{len(mounted)}"
        folder.mkdir()
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"no right to mount a disk: {made.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)
