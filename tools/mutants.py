"""Change what prices, charges and reads data, one small thing at a time, and see whether a test notices.

    tools/mutants.py [--only NAME] [--rust] [--processes N]

Python is changed by cosmic-ray in a copy of the tree, Rust by cargo-mutants. A change that no test notices is a
survivor: it is killed by a new test, or listed in docs/mutants.md with the reason why it changes nothing. Survivors
that are not listed there make this command fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
LISTED = ROOT / "docs" / "mutants.md"
TARGETS = {
    "privacy/accounting.py": "unit/test_accounting unit/test_less_noise unit/test_mechanism",
    "privacy/budget.py": "unit/test_accounting unit/test_mechanism unit/test_messages",
    "privacy/gaussian.py": "unit/test_gaussian",
    "mechanism/calibration.py": "unit/test_mechanism unit/test_less_noise unit/test_gaussian",
    "mechanism/loop.py": "system/test_every_path system/test_stream system/test_ledger_guarantee",
    "mechanism/state.py": "system/test_every_path system/test_stream",
    "ledger/charges.py": "system/test_ledger_guarantee system/test_pools system/test_ledger",
    "ledger/entries.py": "system/test_ledger_guarantee system/test_damage system/test_ledger",
    "ledger/plans.py": "system/test_ledger_guarantee system/test_pools system/test_ledger",
    "ledger/pools.py": "system/test_pools system/test_every_ledger_path system/test_backups",
    "data/events.py": "unit/test_events unit/test_exact_inputs unit/test_messages",
}
"""What is changed, and the tests that should notice, the fastest first."""
CRATES = ("optstream-core", "optstream-release")
KEPT = (
    "ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|Mul_Add|Div_Mul|FloorDiv_Mul|Mod_FloorDiv|Pow_Mul)",
    "ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceBreakWithContinue",
    "AddNot",
    "NumberReplacer",
    "ZeroIterationForLoop",
)
"""The changes that are made; the others are variations of these, or change what types are written."""


@dataclass(frozen=True)
class Outcome:
    """What became of the changes of one file."""

    name: str
    count: int
    survivors: tuple[str, ...]


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", help="a part of the name of what to change")
    parser.add_argument("--rust", action="store_true", help="change the crates instead of the package")
    parser.add_argument("--shard", default="0/1", help="which part of the changes of a crate: 0/10 is a tenth")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    names = [name for name in (CRATES if given.rust else TARGETS) if not given.only or given.only in name]
    listed = LISTED.read_text(encoding="utf-8")
    change = partial(changed_crate, shard=given.shard) if given.rust else changed_module
    failed = False
    with ThreadPoolExecutor(given.processes) as pool:
        for found in tqdm(pool.map(change, names), total=len(names), disable=None, unit="file"):
            unlisted = [text for text in found.survivors if f"`{text}`" not in listed]
            failed |= bool(unlisted)
            killed = found.count - len(found.survivors)
            print(f"{found.name}: {found.count} changes, {killed} noticed, {len(found.survivors)} not")
            for text in found.survivors:
                print(f"  {'NOT LISTED' if text in unlisted else 'listed'}  {text}")
            sys.stdout.flush()
    return int(failed)


def changed_module(name: str) -> Outcome:
    """Change one module of the package in a copy of its own."""
    tree = PLACE / name.replace("/", "-").removesuffix(".py")
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("python", "tests"):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "docs", "tools"):
        (tree / part).symlink_to(ROOT / part)
    module, session, config = tree / "python/optstream" / name, tree / "session.sqlite", tree / "config.toml"
    tests = " ".join(f"tests/{test}.py" for test in TARGETS[name].split())
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider -k 'not postgres and not PutBack' {tests}"
    kept = "|".join(KEPT)
    config.write_text(
        f"""[cosmic-ray]
module-path = {json.dumps(str(module))}
timeout = 240.0
excluded-modules = []
test-command = {json.dumps(command)}
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = ["^core/(?!({kept})$)"]
""",
        encoding="utf-8",
    )
    # The copy must be what is imported, whatever is installed.
    environment = {**os.environ, "PYTHONPATH": str(tree / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    programs = Path(sys.executable).parent

    def run(*arguments: str | Path) -> str:
        done = subprocess.run(
            [programs / arguments[0], *arguments[1:]],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{arguments[0]}: {done.stderr or done.stdout}")
        return done.stdout

    run("cosmic-ray", "baseline", config)
    run("cosmic-ray", "init", config, session)
    run("cr-filter-operators", session, config)
    run("cosmic-ray", "exec", config, session)
    count, survivors = 0, []
    for line in run("cosmic-ray", "dump", session).splitlines():
        _, result = json.loads(line)
        if result is None or result["worker_outcome"] == "skipped":
            continue
        count += 1
        if result["test_outcome"] == "survived":
            survivors.append(f"{name}: {described(result['diff'])}")
    return Outcome(name, count, tuple(sorted(set(survivors))))


def described(diff: str) -> str:
    """Return the line before and after a change, which stays the same when lines move."""
    lines = [line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line)]
    old, new = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"{' '.join(old)} => {' '.join(new)}"


def changed_crate(name: str, shard: str) -> Outcome:
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
    return Outcome(name, found["total_mutants"], tuple(sorted(set(survivors))))


if __name__ == "__main__":
    sys.exit(main())
