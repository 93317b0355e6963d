"""The wheel installs into an empty environment and works there."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_installs_into_an_empty_environment_and_releases(tmp_path: Path) -> None:
    wheels, home = tmp_path / "wheels", tmp_path / "empty"
    build = [sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--out", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True)
    (wheel,) = wheels.glob("optstream-*-cp311-abi3-*.whl")
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
    program = (
        "import numpy as np, optstream as ops; "
        "print(ops.__version__, ops.noise.laplace(np.ones(3), sensitivity=1, epsilon=1, bounds=(0, 2)).size)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [python, "-c", program], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert result.stdout.split()[1] == "3"
