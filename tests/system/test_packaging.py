"""What is published: a source distribution that builds, a wheel that works without Rust, metadata that are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DATA = {".csv", ".db", ".gz", ".npy", ".npz", ".parquet", ".pq", ".png", ".so", ".pyc", ".tsv", ".whl", ".zip"}
"""Suffixes of data and of what is built."""
LARGEST = 2_000_000


def kept() -> set[str]:
    """Return the files of the project: those that git keeps, or would keep."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return set(subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


def source_distribution(folder: Path) -> Path:
    build = [sys.executable, "-m", "maturin", "sdist", "--out", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder / f"optstream-{VERSION}.tar.gz"


def test_the_source_distribution_holds_sources_alone(tmp_path: Path) -> None:
    archive = source_distribution(tmp_path)
    with tarfile.open(archive) as content:
        names = {name.removeprefix(f"optstream-{VERSION}/") for name in content.getnames()}
    assert names - kept() == {"PKG-INFO"}
    assert {"Cargo.lock", "LICENSE", "CHANGELOG.md", "rust/core/src/lib.rs", "python/optstream/py.typed"} <= names
    assert not [name for name in names if Path(name).suffix in DATA or "tests" in Path(name).parent.parts]
    assert archive.stat().st_size < LARGEST


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_runs_the_readme_without_rust(tmp_path: Path) -> None:
    # Compiled dependencies are those of the clone, so that only our own crates are built again.
    environment = os.environ | {"CARGO_TARGET_DIR": str(ROOT / "target")}
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    subprocess.run([*build, str(source_distribution(tmp_path))], cwd=tmp_path, env=environment, check=True)
    (wheel,) = tmp_path.glob(f"optstream-{VERSION}-cp311-abi3-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name.removeprefix("python/") for name in kept() if name.startswith("python/optstream/")}
    assert {name for name in names if ".dist-info/" not in name} == package | {"optstream/_core.abi3.so"}
    assert wheel.stat().st_size < LARGEST
    tried = [sys.executable, str(ROOT / "tools" / "try_wheel.py"), str(wheel)]
    done = subprocess.run(tried, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[1-9]\d* examples in Python and [1-9]\d* of the command line run", done.stdout)


def test_the_changelog_begins_with_the_version() -> None:
    versions = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == VERSION
    assert versions == sorted(versions, key=lambda text: tuple(map(int, text.split("."))), reverse=True)


def brought(extra: str) -> set[str]:
    """Return the requirements of an extra, those of the extras that it names included."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        named = re.fullmatch(r"optstream\[([\w,-]+)\]", requirement)
        found |= set().union(*map(brought, named[1].split(","))) if named else {requirement}
    return found


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_the_extra_all_brings_every_extra(extra: str) -> None:
    assert brought(extra) <= brought("all")


def test_what_the_package_asks_to_install_exists() -> None:
    texts = [path.read_text() for path in (ROOT / "python").rglob("*.py")]
    texts += [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    asked = {
        extra for text in texts for names in re.findall(r"optstream\[([\w,-]+)\]'", text) for extra in names.split(",")
    }
    assert "cli" in asked
    assert asked <= set(PROJECT["optional-dependencies"])


def test_the_publishing_recipe_signs_and_stores_no_token() -> None:
    recipes = {path.name: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
    assert set(recipes) == {"ci.yml", "publish.yml", "wheels.yml"}
    assert not [name for name, text in recipes.items() if "secrets." in text]
    used = [action for text in recipes.values() for action in re.findall(r"uses: ([^\s.]\S+)", text)]
    assert used
    assert not [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)]
    assert "attestations: true" in recipes["publish.yml"]
