"""Change what prices, charges and reads data, one small thing at a time, and see whether a test notices.

    tools/mutants.py [--only NAME] [--sample N] [--again] [--rust] [--processes N]

Python is changed by the operators of cosmic-ray, Rust by cargo-mutants. A change that no test notices is a survivor:
it is killed by a new test, or listed in docs/mutants.md with the reason why it changes nothing. Survivors that are not
listed there make this command fail.

Every change of a Python module is tried in a process of its own, which is forked after the libraries were imported and
before `optstream` is, and which reads the changed text in place of the file. So a change costs as long as its tests
take, and no file is touched. What a test starts as another program sees the module as it is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from hypothesis import Phase, settings
from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
LISTED = ROOT / "docs" / "mutants.md"
TARGETS = {
    "privacy/accounting.py": "unit/test_accounting unit/test_gaussian unit/test_mechanism",
    "privacy/budget.py": "unit/test_accounting unit/test_mechanism unit/test_messages",
    "privacy/gaussian.py": "unit/test_gaussian unit/test_gaussian_losses",
    "mechanism/calibration.py": "unit/test_mechanism unit/test_gaussian unit/test_less_noise",
    "mechanism/loop.py": "unit/test_tuning system/test_every_path system/test_stream system/test_ledger_guarantee",
    "mechanism/state.py": "system/test_every_path system/test_stream unit/test_messages",
    "ledger/charges.py": "system/test_ledger_guarantee system/test_pools system/test_bulk system/test_ledger",
    "ledger/entries.py": "unit/test_entries system/test_ledger_guarantee system/test_damage system/test_ledger",
    "ledger/plans.py": "system/test_ledger_guarantee system/test_pools system/test_ledger system/test_backups",
    "ledger/pools.py": "system/test_pools system/test_backups system/test_every_ledger_path",
    "data/events.py": "unit/test_events unit/test_exact_inputs unit/test_messages",
}
"""What is changed, and the tests that should notice, the fastest first."""
LEFT_OUT = "not postgres and not PutBack and not race and not killed and not crash"
"""Tests that take long and look at other things."""
ALREADY = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
LIBRARIES = ("apsw", "hypothesis.strategies", "numpy", "pandas", "polars", "psycopg", "pyarrow", "scipy.stats")
"""What is imported once for all changes."""
CRATES = ("optstream-core", "optstream-release")
KEPT = re.compile(
    "core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul)"
    "|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    "|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceBreakWithContinue|AddNot"
    "|NumberReplacer|ZeroIterationForLoop)"
)
"""The changes that are made; the others are variations of these, or change what types are written."""
NOTICED, SURVIVED, HUNG = "noticed", "survived", "hung"
UNTOUCHED = -1
"""Stands for the occurrence that leaves a module as it is."""


@dataclass(frozen=True)
class Change:
    """One change of a module."""

    operator: str
    occurrence: int
    line: int

    def applied(self, source: str) -> str:
        """Return the changed text of the module."""
        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        return source if changed is None else changed


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a text in place of its file."""

    def __init__(self, name: str, text: str) -> None:
        """Take the name of a file below the package, and its text."""
        self._name = "optstream." + name.removesuffix(".py").replace("/", ".")
        self._path, self._text = ROOT / "python/optstream" / name, text

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return where the module is, if it is the one."""
        del path, target
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        """Carry out the text."""
        exec(compile(self._text, self._path, "exec"), module.__dict__)  # noqa: S102  (the text is our own)


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", default="", help="a part of the name of what to change")
    parser.add_argument("--sample", type=int, help="how many changes of each module to try, chosen at random")
    parser.add_argument("--again", action="store_true", help="try what survived the last time, and nothing else")
    parser.add_argument("--rust", action="store_true", help="change the crates instead of the package")
    parser.add_argument("--shard", default="0/1", help="which part of the changes of a crate: 0/10 is a tenth")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    listed = LISTED.read_text(encoding="utf-8")
    if given.rust:
        outcomes = [changed_crate(name, given.shard) for name in CRATES if given.only in name]
    else:
        for library in LIBRARIES:
            importlib.import_module(library)
        names = [name for name in TARGETS if given.only in name]
        outcomes = [changed_module(name, given.sample, given.processes, again=given.again) for name in names]
    failed = False
    for name, counts, survivors in outcomes:
        unlisted = [text for text in survivors if f"`{text}`" not in listed]
        failed |= bool(unlisted)
        print(f"{name}: {counts}")
        for text in survivors:
            print(f"  {'NOT LISTED' if text in unlisted else 'listed'}  {text}")
    return int(failed)


def changes_of(source: str) -> Iterator[Change]:
    """Yield all changes of a module."""
    tree = get_ast(source)
    for operator in operator_names():
        if KEPT.fullmatch(operator):
            made = get_operator(operator)()
            places = (place for node in ast_nodes(tree) for place in made.mutation_positions(node))
            for occurrence, (start, _) in enumerate(places):
                yield Change(operator, occurrence, start[0])


def changed_module(name: str, sample: int | None, processes: int, *, again: bool) -> tuple[str, str, list[str]]:
    """Try the changes of one module of the package; return how many were noticed, and those that were not."""
    source = (ROOT / "python/optstream" / name).read_text(encoding="utf-8")
    record = PLACE / f"{name.replace('/', '-')}.json"
    tests = [str(ROOT / f"tests/{test}.py") for test in TARGETS[name].split()]
    before = time.monotonic()
    if waited(started(name, source, tests), 3600) != 0:
        raise SystemExit(f"{name}: the tests fail without any change")
    patience = 60 + 5 * (time.monotonic() - before)
    possible = list(changes_of(source))
    # A change of a comment, of a word in a docstring or of nothing at all is none.
    texts = {change: change.applied(source) for change in possible}
    changes = [change for change in possible if texts[change] != source]
    chosen = changes if sample is None else random.Random(sample).sample(changes, min(sample, len(changes)))  # noqa: S311
    if again:
        survived = set(json.loads(record.read_text(encoding="utf-8")))
        chosen = [change for change in changes if described(source, texts[change]) in survived]
    found: dict[str, list[str]] = {NOTICED: [], SURVIVED: [], HUNG: []}
    running: dict[int, tuple[str, float]] = {}
    with tqdm(total=len(chosen), desc=name, unit="change", disable=None) as progress:
        for change in [*chosen, None]:
            while running and (change is None or len(running) >= processes):
                for process, (said, since) in list(running.items()):
                    code = waited(process, 0)
                    if code is None and time.monotonic() - since < patience:
                        continue
                    if code is None:
                        with suppress(ProcessLookupError):
                            os.killpg(process, signal.SIGKILL)
                        waited(process, 60)
                    found[HUNG if code is None else SURVIVED if code == 0 else NOTICED].append(said)
                    del running[process]
                    progress.update()
                    if code == 0:
                        progress.write(f"{name}: {said}")
                time.sleep(0.02)
            if change is not None:
                text = texts[change]
                running[started(name, text, tests)] = f"{described(source, text)}", time.monotonic()
    survivors = sorted(set(found[SURVIVED]))
    record.write_text(json.dumps(survivors), encoding="utf-8")
    counts = (
        f"{len(changes)} changes, {len(chosen)} tried, {len(found[NOTICED])} noticed, {len(found[HUNG])} never ended, "
        f"{len(found[SURVIVED])} survived"
    )
    return name, counts, [f"{name}: {text}" for text in survivors]


def started(name: str, text: str, tests: Sequence[str]) -> int:
    """Start a process that runs tests with another text of a module; return its number."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.setsid()
        silent = os.open(PLACE / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(PLACE)
        # A test that has failed has failed; nobody needs the smallest example.
        settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None, deadline=None)
        settings.load_profile("mutants")
        sys.meta_path.insert(0, Changed(name, text))
        options = ["-q", "-x", "-p", "no:cacheprovider", "--tb=line", "-k", LEFT_OUT, "-W", ALREADY]
        code = int(pytest.main([*options, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), *tests]))
    except BaseException:  # noqa: BLE001  (nothing may leave the child)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def waited(process: int, patience: float) -> int | None:
    """Return how a process has ended, or None if it has not within some seconds."""
    until = time.monotonic() + patience
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.02)


def described(before: str, after: str) -> str:
    """Return the lines before and after a change, which stay the same when lines move."""
    old, new = before.splitlines(), after.splitlines()
    pairs = zip(old, new, strict=False)
    first = next((index for index, (one, other) in enumerate(pairs) if one != other), 0)
    more = len(new) - len(old)
    last = next((index for index in range(first + 1, len(old)) if old[index:] == new[index + more :]), len(old))
    return f"{' '.join(old[first:last]).strip()} => {' '.join(new[first : last + more]).strip()}"


def changed_crate(name: str, shard: str) -> tuple[str, str, list[str]]:
    """Change one crate."""
    out = PLACE / name
    options = f"--package {name} --output {out} --shard {shard} --baseline skip --timeout 300"
    subprocess.run([shutil.which("cargo") or "cargo", "mutants", *options.split()], cwd=ROOT, check=False)
    found = json.loads((out / "mutants.out" / "outcomes.json").read_text(encoding="utf-8"))
    survivors = [
        re.sub(r":\d+:\d+", "", outcome["scenario"]["Mutant"]["name"])
        for outcome in found["outcomes"]
        if outcome["summary"] == "MissedMutant"
    ]
    counts = f"{found['total_mutants']} changes of shard {shard}, {len(survivors)} survived"
    return name, counts, sorted(set(survivors))


if __name__ == "__main__":
    sys.exit(main())
