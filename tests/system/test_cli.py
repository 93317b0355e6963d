"""The command line: files in and out, exit codes, what is said where, and that nothing is left half done."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import sqlite3
import stat
import subprocess
import sys
import termios
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest

from optstream import OptStream
from optstream.cli import exits
from optstream.cli.app import run
from optstream.cli.exits import OutputError, UsageError
from optstream.cli.outputs import Outputs
from optstream.keys import read_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Call = Callable[..., "Outcome"]

OPTSTREAM = Path(sys.executable).parent / "optstream"
DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"
MECHANISM = ("--epsilon", "100", "--w", "4", "--alpha", "1", "--lower", "0", "--upper", "1000", "--k", "4")
PLAN = """
epsilon = 100
w = 4
alpha = 1
bounds = [0, 1000]
sample = { kind = "equal", k = 4 }
"""
START = datetime(2016, 1, 1)  # noqa: DTZ001  (times without a zone)
HALF_HOUR = timedelta(minutes=30)
LOADS = np.linspace(100.0, 800.0, 8)


class Outcome:
    """What a command left: its exit code and what it said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def table(self) -> pl.DataFrame:
        return pl.read_csv(io.StringIO(self.out))


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return called


def command(*arguments: object, **options: Any) -> Outcome:
    """Run the real command."""
    done = subprocess.run(
        [OPTSTREAM, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False, **options
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def series(steps: int = 8, **columns: Sequence[Any]) -> pl.DataFrame:
    times = [START + HALF_HOUR * step for step in range(steps)]
    return pl.DataFrame({"when": times, "load": np.linspace(100.0, 800.0, steps), **columns})


def write(frame: pl.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, datetime_format="%Y-%m-%dT%H:%M:%S")
    return path


def texts(path: Path, times: Sequence[str]) -> Path:
    path.write_text("when,load\n" + "".join(f"{time},5\n" for time in times))
    return path


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    return write(series(), tmp_path / "loads.csv")


# Files in and out.


APART = "the next periods are priced apart from these: --state FILE or --ledger URL keeps them together\n"


def test_data_goes_to_standard_output_and_messages_to_standard_error(loads: Path) -> None:
    done = command("release", loads, "--time", "when", *MECHANISM)
    assert done.code == 0, done.err
    assert done.table.columns == ["when", "load"]
    assert done.table["when"][1] == "2016-01-01T00:30:00"
    # At epsilon = 100 and w = 4 the noise has scale 0.04: beyond 2 with probability e^-50.
    assert np.abs(done.table["load"].to_numpy() - LOADS).max() < 2
    assert done.err == f"released 2 periods; no window of 4 steps costs more than epsilon = 100\n{APART}"


@pytest.mark.parametrize("read", ["csv", "parquet"])
@pytest.mark.parametrize("written", ["csv", "parquet"])
def test_csv_and_parquet_are_told_apart_by_their_suffix(call: Call, tmp_path: Path, read: str, written: str) -> None:
    source, target = write(series(), tmp_path / f"loads.{read}"), tmp_path / f"private.{written}"
    done = call("release", source, "-o", target, "--time", "when", *MECHANISM)
    assert (done.code, done.out) == (0, "")
    made = pl.read_csv(target, try_parse_dates=True) if written == "csv" else pl.read_parquet(target)
    assert made["when"].to_list() == series()["when"].to_list()
    assert np.abs(made["load"].to_numpy() - LOADS).max() < 2


class TestGoingOn:
    """Two runs on consecutive files are priced together, and no row is released twice."""

    CLOCK = ("--time", "when", "--step", "30m", "--origin", "2016-01-01T00:00:00")

    def test_a_second_run_goes_on_from_the_first(self, call: Call, tmp_path: Path) -> None:
        whole = series(16)
        first, second = (
            write(part, tmp_path / f"{name}.csv") for name, part in (("a", whole.head(8)), ("b", whole.tail(8)))
        )
        state = tmp_path / "state.json"
        options = (*self.CLOCK, *MECHANISM, "--state", state)
        begun = call("release", first, *options, "-o", tmp_path / "a.out.csv")
        assert (begun.code, f"began {state}" in begun.err) == (0, True), begun.err
        # The same rows again are no new periods, and what was known stays known.
        kept = state.read_bytes()
        again = call("release", first, *options)
        assert (again.code, again.out) == (3, "")
        assert "period is 0, but must be at least 2" in again.err
        assert state.read_bytes() == kept
        gone_on = call("release", second, *options)
        assert (gone_on.code, f"went on from {state}" in gone_on.err) == (0, True), gone_on.err
        assert json.loads(state.read_text())["last"] == 3

    def test_another_clock_is_refused(self, call: Call, tmp_path: Path) -> None:
        source, state = write(series(8), tmp_path / "a.csv"), tmp_path / "state.json"
        assert call("release", source, *self.CLOCK, *MECHANISM, "--state", state).code == 0
        other = ("--time", "when", "--step", "30m", "--origin", "2015-12-31T00:00:00")
        done = call("release", source, *other, *MECHANISM, "--state", state)
        assert (done.code, "but must be of one with steps of 1800 s from 2015-12-31" in done.err) == (3, True), done.err

    def test_what_is_spent_is_known_before_anything_is_seen(self, call: Call, tmp_path: Path) -> None:
        source, state = write(series(8), tmp_path / "a.csv"), tmp_path / "state.json"
        options = (*self.CLOCK, *MECHANISM, "--state", state)
        failed = call("release", source, "-o", "/dev/full", *options)
        assert (failed.code, f"what was drawn is spent, as {state} now says" in failed.err) == (8, True), failed.err
        assert json.loads(state.read_text())["last"] == 1
        again = call("release", source, *options)
        assert (again.code, again.out) == (3, "")

    @pytest.mark.parametrize("content", ["null", "[]", "3", "", "[" * 100_000])
    def test_a_state_is_a_state(self, call: Call, tmp_path: Path, content: str) -> None:
        source, state = write(series(8), tmp_path / "a.csv"), tmp_path / "state.json"
        state.write_text(content)
        done = call("release", source, *self.CLOCK, *MECHANISM, "--state", state)
        assert (done.code, "must be a file that `optstream tune`" in done.err) == (3, True), done.err

    def test_two_runs_do_not_go_on_from_one_state(self, call: Call, tmp_path: Path) -> None:
        source, state = write(series(8), tmp_path / "a.csv"), tmp_path / "state.json"
        with (tmp_path / ".state.json.lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = call("release", source, *self.CLOCK, *MECHANISM, "--state", state)
        assert (done.code, "another run goes on from" in done.err, state.exists()) == (2, True, False), done.err

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ((), "--state needs --time, or --first-period"),
            (("--time", "when"), "--state with --time needs --origin and --step"),
        ],
    )
    def test_periods_need_numbers(self, call: Call, loads: Path, arguments: tuple[str, ...], match: str) -> None:
        done = call("release", loads, *arguments, *MECHANISM, "--state", "state.json")
        assert (done.code, match in done.err) == (2, True), done.err


def test_standard_input_is_csv(loads: Path) -> None:
    done = command("release", "-", *MECHANISM, input=loads.read_text())
    assert (done.code, done.table.columns, done.table.height) == (0, ["load"], 8)


def test_the_only_column_of_numbers_is_released_and_otherwise_one_is_asked_for(call: Call, tmp_path: Path) -> None:
    source = write(series(other=[1] * 8, name=["secret"] * 8), tmp_path / "loads.csv")
    done = call("release", source, *MECHANISM)
    assert (done.code, "secret" in done.err) == (3, False)
    assert "choose of ['when', 'load', 'other', 'name']" in done.err
    assert call("release", source, "--value", "other", *MECHANISM).table.columns == ["other"]
    assert call("release", source, "--value", "when", "--time", "when", *MECHANISM).code == 3


def test_dates_and_step_numbers_are_times_too(call: Call, tmp_path: Path) -> None:
    days = texts(tmp_path / "days.csv", [f"2016-01-0{day}" for day in range(1, 9)])
    done = call("release", days, "--time", "when", "--step", "1d", *MECHANISM)
    assert done.table["when"].to_list() == [f"2016-01-0{day}" for day in range(1, 9)]
    steps = texts(tmp_path / "steps.csv", [str(step) for step in range(8, 16)])
    done = call("release", steps, "--time", "when", "--step", "1", "--origin", "0", *MECHANISM, "--json")
    assert json.loads(done.out)["times"] == list(range(8, 16))
    assert json.loads(done.out)["first_period"] == 2
    assert call("release", steps, "--time", "when", "--step", "30m", *MECHANISM).code == 3
    assert call("release", steps, "--time", "when", "--origin", "2016-01-01", *MECHANISM).code == 3


def test_json_is_one_object_with_everything(call: Call, loads: Path) -> None:
    done = call(
        "release",
        loads,
        "--time",
        "when",
        *MECHANISM,
        "--feature",
        "2",
        "--feature",
        "total",
        "--interval",
        0.9,
        "--json",
    )
    content = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert content["times"][-1] == "2016-01-01T03:30:00"
    assert [np.shape(sums) for sums in content["features"]] == [(2, 2), (2, 1)]
    np.testing.assert_allclose(
        np.reshape(content["values"]["load"], (2, 4)).sum(axis=1, keepdims=True), content["features"][1]
    )
    assert content["statement"]["epsilon_requested"] == "100"
    low, value, high = (content["values"][name] for name in ("load_low", "load", "load_high"))
    assert all(a < b < c for a, b, c in zip(low, value, high, strict=True))


def test_a_file_and_json_may_be_had_together(call: Call, loads: Path, tmp_path: Path) -> None:
    done = call("release", loads, *MECHANISM, "--json", "-o", tmp_path / "private.csv")
    assert json.loads(done.out)["values"] == pl.read_csv(tmp_path / "private.csv").to_dict(as_series=False)


def test_intervals_are_columns(call: Call, loads: Path) -> None:
    assert call("release", loads, *MECHANISM, "--interval", "0.5").table.columns == ["load", "load_low", "load_high"]
    assert call("release", loads, *MECHANISM, "--interval", "95").code == 3


@pytest.mark.parametrize("name", ["statement.json", "statement.txt"])
def test_the_statement_is_written(call: Call, loads: Path, tmp_path: Path, name: str) -> None:
    assert call("release", loads, *MECHANISM, "--statement", tmp_path / name).code == 0
    text = (tmp_path / name).read_text()
    stated = json.loads(text)["epsilon_true"] if name.endswith("json") else re.findall(r"asked for: (\d+)", text)[0]
    assert stated == "100"


# Mechanisms.


def test_flags_and_a_plan_file_describe_the_same(call: Call, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN + 'features = [[2], []]\nsplit = ["1/3", 1]\ncalibration = "paper"')
    by_flags = call("plan", *MECHANISM, "--feature", "2", "--feature", "", "--split", "1/3,1", "--calibration", "paper")
    assert by_flags.code == 0
    assert call("plan", "plan.toml").out == call("plan", "--plan", "plan.toml").out == by_flags.out
    assert json.loads(call("plan", "plan.toml", "--json").out)["calibration"] == "paper"
    assert call("plan", "plan.toml", "--plan", "plan.toml").code == 2


def test_l1_sampling_by_flags(call: Call) -> None:
    flags = (
        "--epsilon",
        "1/3",
        "--w",
        8,
        "--alpha",
        1,
        "--lower",
        0,
        "--upper",
        9,
        "--k",
        4,
        "--neighbours",
        "aligned",
    )
    done = call("plan", *flags, "--sample", "l1", "--threshold", 3, "--json")
    content = json.loads(done.out)
    assert (content["epsilon_requested"], content["neighbours"]) == ("1/3", "aligned")
    assert [stage["name"] for stage in content["stages"]] == ["sample", "perturb"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (PLAN.replace("epsilon", "epsilom"), "'epsilon'"),
        (PLAN + "neighbors = 'sliding'", "did you mean 'neighbours'?"),
        (PLAN.replace("w = 4", "w = 0"), "w is 0, but must be from 1 to 2^20"),
        (PLAN.replace("k = 4", "k = 9"), "k is 9, but must be from 2 to w = 4"),
        ("epsilon = = 1", "is not TOML"),
    ],
)
def test_errors_in_a_plan_say_what_to_change(call: Call, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(content)
    done = call("plan", "plan.toml")
    assert (done.code, done.out) == (3, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--plan", "plan.toml", "--w", "4"), "--w does not go with --plan"),
        (("--plan", "plan.toml", "--feature", "total"), "--feature does not go with --plan"),
        (("--w", "4"), "give --epsilon --alpha --lower --upper --k"),
        ((), "give --plan FILE"),
        ((*MECHANISM, "--feature", "a,b"), "--feature is 'a,b'"),
        ((*MECHANISM, "--hierarchy", "plan.txt"), "must end in .toml, .json or .csv"),
        ((*MECHANISM, "--interval", "0.9", "--hierarchy", "tree.json"), "--interval does not go with a hierarchy"),
        ((*MECHANISM, "--value", "a", "--hierarchy", "tree.json"), "--value does not go with a hierarchy"),
        ((*MECHANISM, "--step", "30m"), "--step needs --time"),
        ((*MECHANISM, "--stream", "loads"), "--stream needs --ledger"),
        ((*MECHANISM, "--ledger", "ledger.db"), "--ledger needs --stream"),
        (
            (*MECHANISM, "--ledger", "ledger.db", "--stream", "a", "--time", "when", "--step", "30m"),
            "needs --origin and --step",
        ),
        ((*MECHANISM, "--first-period", "1"), "--first-period needs --ledger or --state"),
        ((*MECHANISM, "-o", "private.xlsx"), "must end in .csv, .parquet, .pq"),
        ((*MECHANISM, "--sample", "random"), "'--sample'"),
        (("--nonsense",), "--nonsense"),
    ],
)
def test_wrong_usage_names_the_flag(
    call: Call, loads: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "plan.txt").write_text("")
    (tmp_path / "tree.json").write_text('{"nation": ["a", "b"]}')
    done = call("release", loads, *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert not (tmp_path / "ledger.db").exists()


TREES = {
    "tree.toml": 'nation = { north = ["a", "b"], south = [] }',
    "tree.json": '{"nation": {"north": ["a", "b"], "south": null}}',
    "tree.csv": "land,part,region\nnation,north,a\nnation,north,b\nnation,south,\n",
}


@pytest.mark.parametrize("name", TREES)
def test_a_hierarchy_has_leaves_as_columns_and_releases_nodes(call: Call, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TREES[name])
    source = write(series(a=range(8), b=range(8), south=range(8)), tmp_path / "leaves.csv")
    done = call("release", source, "--time", "when", *MECHANISM, "--hierarchy", name)
    assert done.code == 0, done.err
    nodes = done.table
    assert nodes.columns == ["when", "nation", "north", "south", "a", "b"]
    assert nodes["nation"].equals(nodes["north"] + nodes["south"], null_equal=False, check_names=False)
    assert json.loads(call("release", source, *MECHANISM, "--hierarchy", name, "--feature", "total", "--json").out)


def test_a_hierarchy_may_stand_in_the_plan_but_not_twice(call: Call, tmp_path: Path) -> None:
    (tmp_path / "tree.toml").write_text(TREES["tree.toml"])
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "both.toml").write_text(PLAN + "[hierarchy]\n" + TREES["tree.toml"])
    source = write(series(a=range(8), b=range(8), south=range(8)), tmp_path / "leaves.csv")
    assert call("release", source, "--plan", "both.toml").table.width == 5
    assert call("release", source, "--plan", "plan.toml", "--hierarchy", "tree.toml").table.width == 5
    assert call("release", source, "--plan", "both.toml", "--hierarchy", "tree.toml").code == 2
    done = call("release", write(series(a=range(8)), tmp_path / "less.csv"), "--plan", "both.toml")
    assert done.code == 4
    assert "no column 'south'" in done.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tree.json", "[1, 2]"),
        ("tree.json", "{"),
        ("tree.toml", "nation = 3"),
        ("tree.csv", ""),
        ("tree.toml", "a=1\nb=2"),
    ],
)
def test_a_file_that_is_no_tree_is_refused(call: Call, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    done = call("plan", *MECHANISM, "--hierarchy", name)
    assert (done.code, done.err.count("\n")) == (3, 1), done.err


# Times.


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ([0, 30, 60, 60, 120, 150, 180, 210], "row 4 of 'when' has the time of the row before"),
        ([0, 30, 90, 120, 150, 180, 210, 240], "row 3 of 'when' comes 2 steps after the row before"),
        ([0, 30, 60, 30, 90, 120, 150, 180], "row 4 of 'when' lies before the row before"),
        ([0, 30, 60, 100, 120, 150, 180, 210], "row 4 of 'when' is not a whole number of steps after"),
        ([30, 60, 90, 120, 150, 180, 210, 240], "row 1 of 'when' is step 1 of a period"),
        ([-120, -90, -60, -30, 0, 30, 60, 90], "row 1 of 'when' lies before --origin"),
        ([7, 37, 67, 97, 127, 157, 187, 217], "row 1 of 'when' lies between two steps"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_that_are_no_consecutive_steps_are_named(
    call: Call, tmp_path: Path, minutes: list[int], said: str, suffix: str
) -> None:
    times = [START + timedelta(minutes=by) for by in minutes]
    source = write(series().with_columns(pl.Series("when", times)), tmp_path / f"loads.{suffix}")
    on_grid = ("--time", "when", "--origin", "2016-01-01T00:00:00", "--step", "30m", *MECHANISM)
    done = call("release", source, *on_grid, "--ledger", "ledger.db", "--stream", "loads", "--create-stream")
    assert (done.code, done.out) == (4, "")
    assert said in done.err
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (["2016-01-01T00:00", "12/31/2016", "", ""], "row 3 of 'when' is empty"),
        (["2016-01-01T00:00", "12/31/2016", "x", "x"], "row 2 of 'when' is no time"),
        (["2016-01-01T00:00", "2016-01-01T00:30", "2016-01-01T01:00Z", "x"], "row 3 of 'when' has an offset"),
        (["2016-01-01T00:00"] * 4, "row 2 of 'when' has the time of the row before"),
        (["2016-01-02", "2016-01-01", "2015-12-31", "2015-12-30"], "row 2 of 'when' lies before the row before"),
    ],
)
def test_times_that_cannot_be_read_are_named_by_row_and_not_quoted(
    call: Call, tmp_path: Path, times: list[str], said: str
) -> None:
    done = call("release", texts(tmp_path / "loads.csv", times), "--time", "when", *MECHANISM)
    assert (done.code, "12/31" in done.err) == (4, False)
    assert said in done.err


@pytest.mark.parametrize("change", [datetime(2016, 3, 26, tzinfo=UTC), datetime(2016, 10, 29, tzinfo=UTC)])
def test_summer_time_neither_drops_nor_repeats_a_step(call: Call, tmp_path: Path, change: datetime) -> None:
    paris = [(change + HALF_HOUR * step).astimezone(ZoneInfo("Europe/Paris")) for step in range(144)]
    assert len({time.utcoffset() for time in paris}) == 2
    on_grid = ("--time", "when", "--step", "30m", "--origin", f"{change:%Y-%m-%d}T00:00:00+00:00", *MECHANISM)
    done = call("release", texts(tmp_path / "a.csv", [time.isoformat() for time in paris]), *on_grid)
    assert done.code == 0, done.err
    assert [datetime.fromisoformat(time) for time in done.table["when"]] == [time.astimezone(UTC) for time in paris]
    zoned = pl.DataFrame(
        {"when": paris, "load": [5.0] * 144}, schema_overrides={"when": pl.Datetime("us", "Europe/Paris")}
    )
    done = call("release", write(zoned, tmp_path / "a.parquet"), *on_grid, "-o", "b.parquet")
    assert pl.read_parquet(tmp_path / "b.parquet")["when"].equals(zoned["when"])
    local = texts(tmp_path / "b.csv", [time.replace(tzinfo=None).isoformat() for time in paris])
    assert call("release", local, "--time", "when", *MECHANISM).code == 4
    assert "must have an offset" in call("release", "a.csv", *on_grid, "--origin", "2016-01-01").err


def test_an_incomplete_last_period_is_an_error_unless_it_is_dropped(call: Call, tmp_path: Path) -> None:
    source = write(series(10), tmp_path / "loads.csv")
    done = call("release", source, *MECHANISM)
    assert done.code == 4
    assert "10 rows: 2 periods of 4 and 2 rows more; --drop-incomplete" in done.err
    done = call("release", source, *MECHANISM, "--drop-incomplete")
    assert (done.code, done.table.height) == (0, 8)
    assert "left out the last 2 rows" in done.err
    assert json.loads(call("release", source, *MECHANISM, "--drop-incomplete", "--json").out)["dropped_rows"] == 2
    few = write(series(3), tmp_path / "few.csv")
    assert call("release", few, *MECHANISM, "--drop-incomplete").code == 4


# Exit codes and messages.


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read as csv"),
        ("load\n1\n2\n\n4\n", "row 3 of 'load' is empty or not finite"),
        ("load\n1\n2\n3\ninf\n", "row 4 of 'load' is empty or not finite"),
        ("load,b\n1,2\n3,4,secret\n", "cannot be read as csv"),
    ],
)
def test_bad_data_is_not_quoted(call: Call, tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "loads.csv").write_text(content)
    done = call("release", "loads.csv", *MECHANISM)
    assert (done.code, "secret" in done.err) == (4, False)
    assert said in done.err


def test_a_column_of_texts_is_bad_data(call: Call, tmp_path: Path) -> None:
    (tmp_path / "loads.csv").write_text("load\n1\n2\nsecret\n4\n")
    done = call("release", "loads.csv", "--value", "load", *MECHANISM)
    assert (done.code, "secret" in done.err) == (4, False)


def test_input_that_does_not_exist_or_is_no_parquet(call: Call, tmp_path: Path) -> None:
    done = call("release", "nowhere.csv", *MECHANISM)
    assert (done.code, done.err) == (4, "error: cannot read nowhere.csv: No such file or directory\n")
    (tmp_path / "loads.parquet").write_text("load\n1\n")
    assert call("release", "loads.parquet", *MECHANISM).code == 4


def test_errors_are_one_line_and_json_where_asked(loads: Path) -> None:
    wrong = [*MECHANISM[:-1], "9"]
    plain = command("release", loads, *wrong)
    assert (plain.code, plain.out, plain.err) == (3, "", "error: k is 9, but must be from 2 to w = 4\n")
    content = json.loads(command("release", loads, *wrong, "--json").err)
    assert content == {"error": {"type": "ParameterError", "message": "k is 9, but must be from 2 to w = 4"}}
    assert json.loads(command("release", loads, "--json").err)["error"]["type"] == "UsageError"
    debug = command("--debug", "release", loads, *wrong)
    assert "Traceback" in debug.err
    assert debug.code == 3


def test_a_bug_is_exit_code_1_with_a_hint_and_without_data(
    call: Call, loads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(OptStream, "release", broken)
    done = call("release", loads, *MECHANISM)
    assert (done.code, done.err.count("\n"), "secret" in done.err) == (1, 1, False)
    assert "please report it" in done.err


def test_interruption_is_exit_code_130_and_termination_143() -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        arguments = [str(OPTSTREAM), "release", "-", *MECHANISM]
        pipe = subprocess.PIPE
        with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            assert process.stdin
            _wait_until_reading(process.pid)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (code, b"", b"")


def _wait_until_reading(pid: int) -> None:
    """Wait until a process sleeps in a read of its standard input, after all of its imports."""
    for _ in range(600):
        mapped = Path(f"/proc/{pid}/maps").read_text()
        if "polars" in mapped and Path(f"/proc/{pid}/wchan").exists() and _reads_pipe(pid):
            return
        select.select([], [], [], 0.05)
    raise AssertionError("the command does not come to read its input")


def _reads_pipe(pid: int) -> bool:
    """Whether the main thread is in read(0, ...): number and first argument of its system call."""
    called = Path(f"/proc/{pid}/syscall").read_text().split()
    return called[:2] == ["0", "0x0"]


def test_a_reader_that_goes_away_is_no_error(loads: Path) -> None:
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "wb") as pipe:
        arguments = [str(OPTSTREAM), "release", str(loads), *MECHANISM]
        done = subprocess.run(arguments, stdout=pipe, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_documented_exit_codes_are_those_of_the_program(call: Call) -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCUMENT.read_text(), flags=re.MULTILINE)}
    assert documented == set(exits.MEANINGS)
    shown = " ".join(call("--help").out.split())
    assert all(f"{code} {meaning}" in shown for code, meaning in exits.MEANINGS.items())


def test_without_the_extra_the_command_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['typer'] = None; from optstream.__main__ import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'optstream[cli]'" in done.stderr


# Nothing half done.


def test_an_existing_file_is_replaced_as_a_whole(call: Call, loads: Path, tmp_path: Path) -> None:
    target, link = tmp_path / "private.csv", tmp_path / "link.csv"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    with target.open() as reader:
        assert call("release", loads, "-o", link, *MECHANISM).code == 0
        assert reader.read() == "old"
    assert link.is_symlink()
    assert pl.read_csv(target).height == 8
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert {path.name for path in tmp_path.iterdir()} == {"loads.csv", "private.csv", "link.csv"}


def test_a_full_disk_leaves_the_old_files_and_nothing_else(tmp_path: Path) -> None:
    source = write(series(8000), tmp_path / "loads.csv")
    target, statement = tmp_path / "private.csv", tmp_path / "statement.txt"
    target.write_text("old")
    # No file of this shell may have more than 64 KiB: the statement fits, the series does not.
    limited = f'ulimit -f 64; exec "{OPTSTREAM}" release "{source}" -o "{target}" --statement "{statement}" "$@"'
    done = subprocess.run(
        ["bash", "-c", limited, "bash", *MECHANISM],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (8, "")
    assert f"cannot write {target}" in done.stderr
    assert target.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"loads.csv", "private.csv"}


def test_a_full_standard_output_is_an_error(loads: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        arguments = [str(OPTSTREAM), "release", str(loads), *MECHANISM]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    message = b"error: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (8, message)


def test_a_folder_that_is_not_there_is_found_before_anything_is_charged(
    call: Call, loads: Path, tmp_path: Path
) -> None:
    done = call(
        "release",
        loads,
        "-o",
        "nowhere/private.csv",
        *MECHANISM,
        "--ledger",
        "ledger.db",
        "--stream",
        "loads",
        "--create-stream",
    )
    assert done.code == 8
    assert not (tmp_path / "ledger.db").exists()


def test_after_a_failed_write_the_ledger_gives_the_same_release_again(call: Call, loads: Path) -> None:
    assert call("ledger", "init", "ledger.db").code == 0
    charged = (*MECHANISM, "--ledger", "ledger.db", "--stream", "loads", "--create-stream")
    done = call("release", loads, "-o", "/dev/full", *charged)
    assert done.code == 8
    assert "the same command costs nothing more" in done.err
    first, again = call("release", loads, *charged), call("release", loads, *charged)
    assert (first.code, first.out) == (0, again.out)
    assert json.loads(call("ledger", "show", "ledger.db", "--json").out)["streams"][0]["charged"] == 2


def test_no_output_may_be_an_input_or_another_output(call: Call, loads: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "link.csv").symlink_to(loads)
    os.link(loads, tmp_path / "hard.csv")
    before = loads.read_bytes()
    for target in ("loads.csv", "link.csv", "hard.csv"):
        assert call("release", loads, "-o", target, *MECHANISM).code == 2
    assert call("release", loads, "--plan", "plan.toml", "--statement", "plan.toml").code == 2
    assert call("release", loads, "-o", "a.csv", "--statement", "a.csv", *MECHANISM).code == 2
    in_ledger = ("--ledger", "ledger.csv", "--stream", "loads", "--create-stream")
    assert call("release", loads, "-o", "ledger.csv", *in_ledger, *MECHANISM).code == 2
    assert loads.read_bytes() == before
    assert not (tmp_path / "a.csv").exists()


def test_outputs_appear_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    with pytest.raises(OutputError), Outputs() as outputs:  # noqa: PT012
        outputs.prepare(first).write(b"1")
        outputs.prepare(second).write(b"2")
        outputs.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with Outputs() as outputs:
        outputs.prepare(first).write(b"1")
        assert not first.exists()
        outputs.prepare(second).write(b"2")
        with pytest.raises(UsageError):
            outputs.prepare(second)
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")


# Ledgers and keys.


def test_the_same_command_gives_the_same_bytes_and_charges_once(call: Call, loads: Path, tmp_path: Path) -> None:
    assert call("key", "create", "curator.key").code == 0
    on_grid = ("--time", "when", "--origin", "2015-12-31T22:00:00", "--step", "30m", *MECHANISM)
    for name in ("ledger.db", "other.db"):
        assert call("ledger", "init", name).code == 0
    charged = ("--ledger", "ledger.db", "--stream", "loads", "--create-stream", "--key-file", "curator.key")
    for target in ("a.csv", "b.csv"):
        done = call("release", loads, "-o", target, *on_grid, *charged)
        assert (done.code, "periods 1 to 2 of 'loads'" in done.err) == (0, True), done.err
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    (account,) = json.loads(call("ledger", "show", "ledger.db", "loads", "--json").out)["streams"]
    assert (account["charged"], account["released"], account["remaining"]) == (2, 2, "0")
    assert [period["period"] for period in account["periods"]] == [1, 2]
    # With the key another ledger computes the same.
    done = call("release", loads, "-o", "c.csv", *on_grid, *charged[2:], "--ledger", "other.db")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "c.csv").read_bytes()


def test_the_ledger_refuses_conflicts_with_6_and_overspending_with_5(call: Call, loads: Path, tmp_path: Path) -> None:
    assert call("ledger", "init", "ledger.db").code == 0
    # What exists stays as it is.
    assert call("ledger", "init", "ledger.db").code == 2
    charged = ("--ledger", "ledger.db", "--stream", "loads", "--create-stream")
    assert call("release", loads, *MECHANISM, *charged).code == 0
    other = write(series().with_columns(pl.col("load") + 1), tmp_path / "other.csv")
    done = call("release", other, *MECHANISM, *charged, "--json")
    assert (done.code, json.loads(done.err)["error"]["type"]) == (6, "ConflictError")
    dear = ("--epsilon", "101", *MECHANISM[2:])
    done = call("release", other, *dear, *charged, "--first-period", "2", "-o", "private.csv")
    assert (done.code, done.err.count("\n")) == (5, 1)
    assert not (tmp_path / "private.csv").exists()
    assert call("release", other, *MECHANISM, *charged, "--first-period", "2").code == 0


def test_show_verify_and_export(call: Call, loads: Path, tmp_path: Path) -> None:
    assert call("ledger", "init", "ledger.db").code == 0
    assert (
        call("release", loads, *MECHANISM, "--ledger", "ledger.db", "--stream", "[red]loads", "--create-stream").code
        == 0
    )
    shown = command("ledger", "show", "ledger.db", "[red]loads", cwd=tmp_path)
    assert shown.code == 0
    assert shown.out.startswith(
        "[red]loads\n  policy              epsilon 100 in sliding windows of 4 steps, alpha 1\n"
    )
    assert len(re.findall(r"^  \d  100 ", shown.out, flags=re.MULTILINE)) == 0
    assert re.findall(r"^  (\d) +100 ", shown.out, flags=re.MULTILINE) == ["0", "1"]
    assert call("ledger", "show", "ledger.db", "nobody").code == 2
    done = call("ledger", "verify", "ledger.db")
    assert (done.code, done.out) == (0, "1 streams, 2 charges, 2 releases: no problems\n")
    exported = call("ledger", "export", "ledger.db")
    assert call("ledger", "export", "ledger.db", "-o", "out.jsonl").code == 0
    assert (tmp_path / "out.jsonl").read_text() == exported.out
    assert all(json.loads(line) for line in exported.out.splitlines())
    assert call("ledger", "export", "ledger.db", "-o", "ledger.db").code == 2


def test_verification_of_an_altered_ledger_is_exit_code_7(call: Call, loads: Path) -> None:
    assert call("ledger", "init", "ledger.db").code == 0
    assert call("release", loads, *MECHANISM, "--ledger", "ledger.db", "--stream", "loads", "--create-stream").code == 0
    with closing(sqlite3.connect("ledger.db")) as database:
        database.execute("UPDATE optstream_entries SET written = '2020-01-01T00:00:00+00:00' WHERE number = 3")
        database.commit()
    done = call("ledger", "verify", "ledger.db")
    assert done.code == 7
    assert "problems\n  - entry 3 of 'loads' was altered" in done.out
    done = call("ledger", "verify", "ledger.db", "--json")
    assert (done.code, len(json.loads(done.out)["problems"])) == (7, 2)


@pytest.mark.parametrize("verb", ["show", "verify", "export"])
def test_a_wrong_path_is_an_error_and_makes_no_ledger(call: Call, tmp_path: Path, verb: str) -> None:
    assert call("ledger", verb, "ledger.db").code == 6
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "loads.db").write_text("no database at all, but long enough to have a header of its own " * 20)
    assert call("ledger", verb, "loads.db").code == 6


def test_a_key_is_secret_and_never_overwritten(call: Call, tmp_path: Path) -> None:
    assert call("key", "create", "curator.key").code == 0
    path = tmp_path / "curator.key"
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key(path)
    done = call("key", "create", "curator.key")
    assert (done.code, path.read_bytes()) == (3, before)
    assert before.decode().strip() not in done.err


# Events.


def test_aggregate_makes_a_series_that_release_takes(call: Call, tmp_path: Path) -> None:
    events = pl.DataFrame(
        {
            "rider": ["a", "a", "b", "c"],
            "zone": ["n", "n", "s", "n"],
            "at": [START + timedelta(minutes=by) for by in (5, 6, 7, 100)],
            "fare": [3.0, 4.0, 0.5, 9.0],
        }
    )
    source = write(events, tmp_path / "trips.csv")
    common = ("aggregate", source, "--entity", "rider", "--time", "at", "--step", "30m")
    day = ("--start", "2016-01-01T00:00:00", "--stop", "2016-01-01T02:00:00")
    done = call(*common, *day, "-o", "count.csv")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "count.csv").read_text().splitlines()[:2] == ["at,count", "2016-01-01T00:00:00,2"]
    assert call("release", "count.csv", "--time", "at", *MECHANISM).code == 0
    done = call(*common, "-o", "fare.parquet", "--value", "fare", "--alpha", 5, "--clip", 0, 4, "--group", "zone")
    assert (done.code, "not protected" in done.err) == (0, True)
    assert pl.read_parquet(tmp_path / "fare.parquet").row(0)[1:] == (4.0, 0.5)
    grouped = (*common, *day, "-o", "zones.csv", "--group", "zone")
    # A zone without events keeps its column.
    named = call(*grouped, "--groups", "n", "--groups", "quiet", "--groups", "s")
    assert (named.code, named.err) == (0, "")
    assert (tmp_path / "zones.csv").read_text().splitlines()[:2] == ["at,n,quiet,s", "2016-01-01T00:00:00,1,0,1"]
    (tmp_path / "city.json").write_text('{"city": ["n", "quiet", "s"]}')
    assert call(*grouped, "--hierarchy", "city.json").code == 0
    assert (tmp_path / "zones.csv").read_text().startswith("at,n,quiet,s")
    assert call(*grouped, "--groups", "n").code == 4
    assert call(*grouped, "--hierarchy", "city.json", "--groups", "n").code == 2
    assert call(*common, *day, "-o", "zones.csv", "--groups", "n").code == 2
    assert call(*common, *day, "-o", source).code == 2
    assert call(*common, "--start", "yesterday", "-o", "x.csv").code == 3
    assert call("aggregate", "nowhere.csv", *common[2:], "-o", "x.csv").code == 4
    assert not (tmp_path / "x.csv").exists()


# Terminals.


def on_terminal(*arguments: object, out: bool = False) -> tuple[int, str, str]:
    """Run the command with standard error, and standard output if asked, on a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 100))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    # A file takes all of the data, whoever reads the terminal meanwhile.
    with TemporaryFile() as data:
        with subprocess.Popen(
            [str(OPTSTREAM), *map(str, arguments)], stdout=theirs if out else data, stderr=theirs, env=environment
        ) as process:
            os.close(theirs)
            shown = b"".join(iter(lambda: _read_terminal(ours), b""))
            code = process.wait(timeout=60)
        os.close(ours)
        data.seek(0)
        return code, shown.decode(), data.read().decode()


def _read_terminal(ours: int) -> bytes:
    try:
        return os.read(ours, 65536)
    except OSError:  # nobody has the other end any more
        return b""


def test_progress_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "tree.json").write_text('{"nation": ["a", "b"]}')
    source = write(series(8000, a=range(8000), b=range(8000)), tmp_path / "leaves.csv")
    arguments = ("release", source, *MECHANISM, "--hierarchy", tmp_path / "tree.json")
    code, shown, data = on_terminal(*arguments)
    assert (code, data.count("\n")) == (0, 8001)
    assert "releasing" in shown
    assert "2000" in shown
    assert "\x1b" not in data
    quiet = command(*arguments)
    assert quiet.err == f"released 2000 periods; no window of 4 steps costs more than epsilon = 100\n{APART}"


def test_tables_and_statements_are_drawn_on_a_terminal(loads: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    assert command("ledger", "init", ledger).code == 0
    assert (
        command("release", loads, *MECHANISM, "--ledger", ledger, "--stream", "[red]loads", "--create-stream").code == 0
    )
    code, shown, _ = on_terminal("ledger", "show", ledger, "[red]loads", out=True)
    assert (code, "[red]loads" in shown, "\x1b[1m" in shown) == (0, True, True), shown
    assert re.search(r"[┃│|] .*period", shown), shown
    code, shown, _ = on_terminal("plan", *MECHANISM, "--calibration", "paper", "--feature", "total", out=True)
    assert (code, "\x1b[1;31mWARNING" in shown) == (0, True)
    assert "\x1b" not in command("plan", *MECHANISM).out


# Help.


@pytest.mark.parametrize(
    "words",
    [(), ("release",), ("plan",), ("tune",), ("aggregate",), ("reproduce",), ("key", "create")]
    + [("ledger", verb) for verb in ("show", "export", "verify")],
)
def test_every_command_has_an_example(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words, "--help")
    assert done.code == 0
    example = " ".join(done.out.split("Example")[1].split())
    assert example.startswith(f"optstream {' '.join(words)}")


def test_the_version_is_shown_and_a_mistyped_command_is_corrected(call: Call) -> None:
    assert re.fullmatch(r"optstream \d+\.\d+\.\d+\n", call("--version").out)
    assert "Did you mean 'release'?" in call("relaese").err
    assert (call().code, "Usage" in call().out) == (2, True)


def test_the_shell_completes() -> None:
    asked = {**os.environ, "_OPTSTREAM_COMPLETE": "complete_bash", "COMP_WORDS": "optstream rel", "COMP_CWORD": "1"}
    assert command(env=asked).out.split() == ["release"]
    asked |= {"COMP_WORDS": "optstream plan --sample ", "COMP_CWORD": "3"}
    assert command(env=asked).out.split() == ["equal", "l1", "bucket"]
    # As --show-completion prints it, which asks the parent process for its shell.
    script = command(env={**os.environ, "_OPTSTREAM_COMPLETE": "source_bash"}).out
    assert "complete -o default -F _optstream_completion optstream" in script


def test_the_same_hours_cannot_be_released_again_from_another_origin(call: Call, loads: Path) -> None:
    charged = (
        *MECHANISM,
        "--time",
        "when",
        "--step",
        "30m",
        "--ledger",
        "ledger.db",
        "--stream",
        "loads",
        "--create-stream",
    )
    # A slip in the path is an error, not a fresh budget.
    assert call("release", loads, *charged, "--origin", "2016-01-01T00:00:00").code == 6
    assert call("ledger", "init", "ledger.db").code == 0
    done = call("release", loads, *charged, "--origin", "2016-01-01T00:00:00")
    assert done.code == 0
    again = call("release", loads, *charged, "--origin", "2015-12-31T00:00:00")
    assert again.code == 3
    assert "was begun with steps of 1800 s from 2016-01-01T00:00:00" in again.err
    assert json.loads(call("ledger", "show", "ledger.db", "--json").out)["streams"][0]["charged"] == 2


def test_a_ledger_may_be_in_postgresql(call: Call, loads: Path, postgres_url: str) -> None:
    assert call("ledger", "init", postgres_url).code == 0
    charged = (*MECHANISM, "--ledger", postgres_url, "--stream", "loads", "--create-stream")
    first, again = (call("release", loads, *charged) for _ in range(2))
    assert first.code == 0
    assert first.out == again.out
    assert call("ledger", "verify", postgres_url).code == 0
    assert json.loads(call("ledger", "show", postgres_url, "--json").out)["streams"][0]["charged"] == 2


def test_pools_backups_and_keys_by_commands(call: Call, loads: Path) -> None:
    for arguments in (
        ("key", "create", "curator.key"),
        ("ledger", "init", "ledger.db"),
        ("ledger", "pool", "create", "ledger.db", "people", "--epsilon", "1", "--w", "48"),
        ("ledger", "stream", "create", "ledger.db", "early", "--epsilon", "1/2", "--w", "48", "--pool", "people"),
    ):
        assert call(*arguments).code == 0
    charged = (*MECHANISM, "--ledger", "ledger.db", "--stream", "loads")
    # A name that does not exist is an error, not a fresh budget.
    refused = call("release", loads, *charged)
    assert refused.code != 0
    assert "is not in the ledger, but must be" in refused.err
    assert call("release", loads, *charged, "--create-stream").code == 0
    shown = json.loads(call("ledger", "show", "ledger.db", "--json").out)
    assert [pool["members"] for pool in shown["pools"]] == [["early"]]
    assert call("ledger", "backup", "ledger.db", "backup.db").code == 0
    assert call("ledger", "verify", "backup.db").code == 6
    assert call("ledger", "restore", "backup.db", "restored.db").code == 2
    assert call("ledger", "restore", "backup.db", "restored.db", "--accept-loss", "3").code == 0
    assert call("ledger", "verify", "restored.db").code == 0
    assert call("ledger", "accept-loss", "restored.db", "9").code == 0
    keyed = ("--ledger", "keyed.db", "--stream", "loads", "--key-file", "curator.key")
    assert call("ledger", "init", "keyed.db").code == 0
    first = call("release", loads, *MECHANISM, *keyed, "--create-stream")
    assert call("key", "rotate", "curator.key", "--ledger", "keyed.db").code == 0
    assert call("release", loads, *MECHANISM, *keyed).out == first.out
    assert call("release", loads, *MECHANISM, *keyed, "--first-period", "5000").code == 0
