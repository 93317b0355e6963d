"""Install a wheel into an empty environment without Rust, and run what the README shows.

    python tools/try_wheel.py build/wheel/optstream-0.2.0-cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl

Needs Python alone, so that it runs wherever a wheel must.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ("bash", "cat")
"""What the examples use beside `optstream`: all else, compilers above all, is out of reach."""
OTHERS = ("git ", "make ", "pip ")
"""How commands begin that are for people with a clone, or that install."""
COMMANDS = """
optstream tune --epsilon 1 --w 24 --alpha 1 --lower 0 --upper 1000 -o tuned.toml --plot tune.png
optstream reproduce --help
python -c 'import matplotlib, psycopg, statsmodels'
"""
"""What documented commands need beyond those of the README: pictures, forecasts, PostgreSQL."""


def main() -> None:
    """Install and try the wheel that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel.resolve()
    with tempfile.TemporaryDirectory() as folder:
        attempt(wheel, Path(folder))


def attempt(wheel: Path, folder: Path) -> None:
    """Install a wheel with the extra `cli` and run the examples."""
    home, work = folder / "home", folder / "work"
    work.mkdir()
    venv.create(home, with_pip=True)
    environment = bare_environment(home)
    install = ["python", "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:", f"{wheel}[cli]"]
    call([str(home / "bin" / install[0]), *install[1:]], work, environment)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    python, shell = blocks(readme, "python"), blocks(readme, "sh")
    (work / "readme.py").write_text("\n".join(python), encoding="utf-8")
    call([str(home / "bin" / "python"), "readme.py"], work, environment)
    commands = [block for block in shell if not any(line.startswith(OTHERS) for line in block.splitlines())]
    for block in [*commands, COMMANDS]:
        call([str(home / "bin" / "bash"), "-euo", "pipefail", "-c", block], work, environment)
    print(f"{wheel.name}: {len(python)} examples in Python and {len(commands)} of the command line run")


def bare_environment(home: Path) -> dict[str, str]:
    """Return variables in which nothing is found but the environment and the programs of the examples."""
    for program in PROGRAMS:
        found = shutil.which(program)
        if found is None:
            sys.exit(f"{program} is not installed, but the examples need it")
        (home / "bin" / program).symlink_to(found)
    path = str(home / "bin")
    if any(shutil.which(program, path=path) for program in ("cargo", "rustc")):
        sys.exit("a Rust compiler is within reach, but the wheel must do without")
    hidden = ("PYTHON", "OPTSTREAM", "CARGO", "RUST", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | {"PATH": path}


def blocks(document: str, language: str) -> list[str]:
    """Return the examples of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document, flags=re.DOTALL | re.MULTILINE)


def call(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run a command; end with all that it wrote if it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} exits with {done.returncode}\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    main()
