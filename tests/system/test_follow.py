"""``optstream follow``: lines in, private lines out; an interruption loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ["--epsilon", "1", "--w", "4", "--alpha", "1", "--lower", "0", "--upper", "100", "--k", "4"]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "optstream", *map(str, arguments)]


def followed(ledger: Path, lines: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = command("follow", "-", "--ledger", ledger, "--stream", "s", "--create-stream", *FLAGS, *more)
    return subprocess.run(arguments, input=lines, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    subprocess.run(command("ledger", "init", tmp_path / "l.db"), check=True, capture_output=True)
    return tmp_path / "l.db"


def test_lines_go_through_and_come_out_again(ledger: Path) -> None:
    first = followed(ledger, '0,50\n{"step": 1, "value": 51}\n2,52\n')
    assert first.returncode == 0, first.stderr
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["interval"][0] <= row["value"] <= row["interval"][1] for row in rows)
    again = followed(ledger, "0,50\n1,51\n2,52\n3,53\n4,54\n")
    assert again.stdout.startswith(first.stdout)
    assert len(again.stdout.splitlines()) == 5
    wrong = followed(ledger, "5,what\n")
    assert wrong.returncode != 0
    assert "what" not in wrong.stderr


def test_a_file_that_grows_is_followed_until_it_is_interrupted(ledger: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("0,50\n")
    arguments = command("follow", source, "--ledger", ledger, "--stream", "s", "--create-stream", *FLAGS)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline()]
        with source.open("a") as file:
            file.write("1,51\n")
        seen.append(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.wait(20)
    assert [json.loads(line)["step"] for line in seen] == [0, 1]
    assert followed(ledger, source.read_text()).stdout == "".join(seen)


def test_a_file_is_released_as_if_it_had_come_step_by_step(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("value\n" + "50\n" * 8)
    done = subprocess.run(
        command("release", source, "--emit", "step", *FLAGS), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9


def test_another_mechanism_goes_on_where_it_was(ledger: Path) -> None:
    flags = ["--mechanism", "budget_absorption", *FLAGS[:-2]]

    def follow(lines: str, *given: str) -> subprocess.CompletedProcess[str]:
        arguments = command("follow", "-", "--ledger", ledger, "--stream", "s", "--create-stream", *given)
        return subprocess.run(arguments, input=lines, capture_output=True, text=True, check=False, timeout=60)

    first = follow("0,50\n1,51\n2,52\n3,53\n4,54\n", *flags)
    assert first.returncode == 0, first.stderr
    again = follow("".join(f"{step},{50 + step}\n" for step in range(7)), *flags)
    assert again.stdout.startswith(first.stdout)
    assert len(again.stdout.splitlines()) == 7
    wrong = follow("7,57\n", *flags, "--k", "3")
    assert "unknown key 'k'" in wrong.stderr
    released = subprocess.run(
        command("release", "-", "--ledger", ledger, "--stream", "s", "--first-period", "0", *flags),
        input="x\n1\n2\n3\n4\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "--ledger does not go with BudgetAbsorption" in released.stderr
