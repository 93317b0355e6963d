"""The paper's evaluation on invented streams: every figure comes out, and the page is looked at in a real browser."""

from __future__ import annotations

import base64
import csv
import fcntl
import gzip
import io
import json
import os
import re
import subprocess
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from matplotlib.image import imread

from optstream.cli import reproduce as command
from optstream.cli.app import run
from optstream.errors import DataError
from optstream.evaluate import Mean
from optstream.reproduce import FIGURES
from optstream.reproduce.data import DAYS, Folder
from optstream.reproduce.study import Drawn, Study
from optstream.reproduce.tables import HEADER, Row, pivot, ranking, typical

if TYPE_CHECKING:
    from collections.abc import Callable

REGIONS = ("auvergne_rhone_alpes", "bretagne", "normandie")
COLUMNS = {
    "rte_regional_load_2016": (*REGIONS, "france_rte"),
    "rte_regional_load_2015": (*REGIONS, "france_rte"),
    "nyc_taxi_30min": ("passengers",),
    "melbourne_pedestrian_hourly": ("birrarung_marr", "southern_cross_station"),
    "tweets_30min": ("aapl", "cvs"),
    "tweets_5min": ("aapl", "cvs"),
}
LENGTHS = {"rte_regional_load_2016": 305, "tweets_5min": 3}
"""Days of the files: as far as October for the months, and few of the rest."""
SCRIPT = Path(__file__).parents[2] / "tools" / "chromium"


def write_stream(folder: Path, name: str, days: int) -> None:
    w = DAYS.get(name, 48)
    steps = np.arange(days * w)
    day = 1 + 0.3 * np.sin(2 * np.pi * steps / w)
    columns = [np.round(1000.0 * (place + 2) * day).astype(int) for place in range(len(COLUMNS[name]))]
    start = datetime(int(name[-4:]) if name[-4:].isdigit() else 2015, 1, 1)  # noqa: DTZ001
    times = [start + timedelta(days=1) / w * int(step) for step in steps]
    with gzip.open(folder / f"{name}.csv.gz", "wt", compresslevel=1, newline="") as file:
        table = csv.writer(file)
        table.writerow(["timestamp", *COLUMNS[name]])
        table.writerows(zip([f"{time:%Y-%m-%d %H:%M}" for time in times], *columns, strict=True))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Invent a folder with the files and columns of the real one."""
    folder = tmp_path_factory.mktemp("data")
    for name in COLUMNS:
        write_stream(folder, name, LENGTHS.get(name, 10))
    return folder


@pytest.fixture(scope="module")
def made(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run everything once, for all processes that share the tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "made" / "deep" / "out"
    with (shared / "made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            arguments = ["reproduce", "--data", data, "--quick", "--trials", "2", "--processes", "2", "-o", folder]
            assert run([str(argument) for argument in arguments]) == 0
    return folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").read_text(encoding="utf-8").splitlines()))


def test_the_help_names_every_figure() -> None:
    assert command.NAMES.split(", ") == list(FIGURES)


def test_an_unknown_figure_is_refused_with_the_names(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "--data", str(data), "--figure", "tables", "-o", str(tmp_path)]) == 3
    said = capsys.readouterr().err
    assert "'tables'" in said
    assert all(name in said for name in FIGURES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["", "tweets_5min.csv.gz", "rte_regional_load_2015.csv.gz"])
def test_missing_data_is_named(missing: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    if missing:
        folder.mkdir()
        for file in data.iterdir():
            if file.name != missing:
                (folder / file.name).symlink_to(file)
    assert run(["reproduce", "--data", str(folder), "--figure", "january", "-o", str(tmp_path / "out")]) == 4
    assert (missing or str(folder)) in capsys.readouterr().err


def test_people_who_move_are_invented_and_need_no_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "--figure", "moving", "--figure", "samplers", "-o", str(tmp_path)]) == 3
    assert "samplers reads it" in capsys.readouterr().err
    asked = ["--quick", "--trials", "1", "--processes", "1", "-o", str(tmp_path)]
    assert run(["reproduce", "--figure", "moving", *asked]) == 0
    rows = rows_of(tmp_path)
    assert len(rows) == 3 * 6 * 3
    assert all(row["true_epsilon"] == row["epsilon"] for row in rows)
    off = {row["mechanism"]: float(row["mean"]) for row in rows if (row["error"], row["epsilon"]) == ("level 2", "1")}
    # Zones pay for cube noise if riders move: half as much again, ten standard deviations away from a tenth.
    assert off["cube, moving"] > 1.1 * off["cube, settled"]


def test_an_output_that_cannot_be_written_is_found_before_the_work(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["reproduce", "--data", str(data), "-o", str(tmp_path / "file" / "out")]) == 8
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_run_that_was_interrupted_goes_on_from_what_is_ready(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    whole = FIGURES["l1-error"]

    def interrupted(*_: object) -> Drawn:
        raise KeyboardInterrupt

    def counted(_: Study, name: str) -> Drawn:
        made.append(name)
        return Drawn([Row(name, "load", 1.0, Fraction(1), "Laplace", "sound", Fraction(1), "point", Mean.of([2.0]))])

    asked = ["reproduce", "--data", str(data), "--figure", "l1-error", "--figure", "samplers", "-o", str(tmp_path)]
    monkeypatch.setitem(FIGURES, "l1-error", replace(whole, run=counted))
    monkeypatch.setitem(FIGURES, "samplers", replace(FIGURES["samplers"], run=interrupted))
    assert run([*asked, "--trials", "1"]) != 0
    assert [row["figure"] for row in rows_of(tmp_path)] == ["l1-error"]
    monkeypatch.setitem(FIGURES, "samplers", replace(whole, run=counted))
    # Other settings do not take up what was made with these.
    assert run([*asked, "--trials", "2", "-o", str(tmp_path / "other")]) == 0
    assert run([*asked, "--trials", "1"]) == 0
    assert made == ["l1-error", "l1-error", "samplers", "samplers"]
    assert [row["figure"] for row in rows_of(tmp_path)] == ["l1-error", "samplers"]
    assert not (tmp_path / "parts").exists()


def spoil_text(content: str) -> str:
    return content.replace("2000", "many", 1)


def spoil_head(content: str) -> str:
    return content.replace("timestamp", "when", 1)


def spoil_rows(content: str) -> str:
    return content[: content.rindex("\n", 0, -1) + 1]


@pytest.mark.parametrize("spoil", [spoil_text, spoil_head, spoil_rows])
def test_a_file_that_holds_something_else_is_named(spoil: Callable[[str], str], data: Path, tmp_path: Path) -> None:
    for file in data.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "nyc_taxi_30min.csv.gz"
    path.write_bytes(gzip.compress(spoil(gzip.decompress(path.read_bytes()).decode()).encode()))
    with pytest.raises(DataError, match=r"nyc_taxi_30min\.csv\.gz"):
        Folder(tmp_path).columns("nyc_taxi_30min")


def test_a_broken_archive_is_named(data: Path, tmp_path: Path) -> None:
    for file in data.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"tweets_30min\.csv\.gz"):
        Folder(tmp_path).columns("tweets_30min")


def test_a_month_that_is_missing_is_named(data: Path, tmp_path: Path) -> None:
    for file in data.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "rte_regional_load_2016.csv.gz").unlink()
    write_stream(tmp_path, "rte_regional_load_2016", 40)
    load = Folder(tmp_path).load
    assert load.region[load.days("January")].size == 31 * 48
    with pytest.raises(DataError, match="no June"):
        load.days("June")
    with pytest.raises(DataError, match="40 days before February"):
        load.before("February", 40, 48)


def test_totals_are_streams_and_the_nation_is_no_region(data: Path) -> None:
    folder = Folder(data)
    names = [stream.name for stream in folder.streams()]
    assert "tweets_5min/total" in names
    assert "rte_regional_load_2016/total" not in names
    assert tuple(folder.load.regions) == REGIONS
    histories = [stream.name for stream in folder.streams() if stream.history is not None]
    assert histories == [f"rte_regional_load_2016/{column}" for column in (*REGIONS, "france_rte")]


@pytest.mark.slow
def test_every_figure_has_whole_files(made: Path) -> None:
    names = {path.name for path in made.iterdir()}
    assert not [name for name in names if name.endswith(".tmp")]
    pictures = sorted(made.glob("*.png"))
    assert {path.with_suffix(".svg").name for path in pictures} == {path.name for path in made.glob("*.svg")}
    for name in FIGURES:
        assert [path for path in pictures if path.name.startswith(name)], name
    for path in pictures:
        assert imread(path).std() > 0.01, path
        assert ET.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")  # noqa: S314


@pytest.mark.slow
def test_the_table_has_every_figure_in_both_calibrations_with_the_true_epsilon(made: Path) -> None:
    rows = rows_of(made)
    markdown = (made / "results.md").read_text(encoding="utf-8").splitlines()
    assert tuple(rows[0]) == HEADER
    assert len(markdown) == len(rows) + 2
    for name in FIGURES:
        own = [row for row in rows if row["figure"] == name]
        # The paper has no scales for people who move.
        calibrations = {"sound"} if name == "moving" else {"sound", "paper"}
        assert {row["calibration"] for row in own} == calibrations | ({"none"} & {row["calibration"] for row in own})
        assert all(float(row["mean"]) >= 0 for row in own)
    for row in rows:
        if row["calibration"] == "sound":
            assert Fraction(row["true_epsilon"]) <= Fraction(row["epsilon"])
    printed = [row for row in rows if row["figure"] == "l1-error" and row["calibration"] == "paper"]
    factors = {row["mechanism"]: float(row["true_epsilon"]) / float(row["epsilon"]) for row in printed}
    assert factors["Laplace"] == 1
    assert factors["OptStream ES"] == 24.5
    assert min(factors["DFT"], factors["OptStream LS"]) > 8


@pytest.mark.slow
def test_the_long_table_is_sorted_and_has_all_mechanisms(made: Path) -> None:
    rows = [row for row in rows_of(made) if row["figure"] == "errors"]
    by_place: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_place.setdefault((row["stream"], row["epsilon"]), []).append(float(row["mean"]))
    assert len(by_place) == len(DAYS) * 3
    assert all(errors == sorted(errors) for errors in by_place.values())
    assert len({row["mechanism"] for row in rows}) == 21
    summary = (made / "summary.md").read_text(encoding="utf-8")
    assert summary.count("times Laplace") == 3
    assert all(f"## {figure.title}\n" in summary for figure in FIGURES.values())


def invented_row(stream: str, mechanism: str, error: float, true_epsilon: int = 1) -> Row:
    return Row(
        figure="errors",
        stream=stream,
        alpha=1.0,
        epsilon=Fraction(1),
        mechanism=mechanism,
        calibration="sound",
        true_epsilon=Fraction(true_epsilon),
        error="point",
        mean=Mean.of([error]),
    )


def test_errors_are_ranked_beside_plain_noise() -> None:
    rows = [invented_row("a", "Laplace", 8), invented_row("a", "x", 2), invented_row("b", "Laplace", 9000)]
    rows += [invented_row("b", "x", 9000), invented_row("a", "printed", 1, true_epsilon=9)]
    assert typical(rows, Fraction(1)) == pytest.approx({"printed": 1 / 8, "x": 0.5, "Laplace": 1.0})
    assert ranking(rows).splitlines()[2:] == [
        "| stream | printed | x | Laplace |",
        "| --- | --: | --: | --: |",
        "| a | 1 | **2** | 8 |",
        "| b |  | 9,000 | **9,000** |",
        "| *times Laplace* | 0.125 | 0.5 | 1 |",
    ]


def test_a_pivot_has_the_true_epsilon_beside_what_costs_more() -> None:
    rows = [invented_row("a", "x", 8), invented_row("b", "x", 2), invented_row("b", "y", 1234.5, true_epsilon=9)]
    assert pivot(rows).splitlines() == [
        "| stream | error | alpha | epsilon | x | y |",
        "| --- | --- | --: | --: | --: | --: |",
        "| a | point | 1 | 1 | 8 |  |",
        "| b | point | 1 | 1 | 2 | 1,234 (ε 9) |",
    ]


class Page(HTMLParser):
    """What a page refers to and is called."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if tag == "img":
            self.images.append(found)
        if tag == "a":
            self.links.append(found["href"] or "")
        if found.get("id"):
            self.ids.add(found["id"] or "")


@pytest.mark.slow
def test_the_page_holds_everything_and_needs_nothing(made: Path) -> None:
    text = (made / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.images) == len(list(made.glob("*.png")))
    for image in page.images:
        assert image["alt"]
        kind, _, data = (image["src"] or "").partition(",")
        assert kind == "data:image/png;base64"
        assert imread(io.BytesIO(base64.b64decode(data))).size > 0
    assert page.links == [f"#{name}" for name in FIGURES]
    assert {link.removeprefix("#") for link in page.links} <= page.ids
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert not re.search(r"https?:|@import|url\(", text)


def browse(chromium: str, folder: Path, page: Path, *options: str) -> str:
    """Open a page in a browser that reaches nothing, and return what it prints."""
    arguments = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=10000",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


def requested(log: Path) -> list[str]:
    """Return what pages asked the network for; what the browser asks for itself has no origin."""
    content = json.loads(log.read_text(encoding="utf-8"))
    return [
        event["params"]["url"]
        for event in content["events"]
        if event.get("params", {}).get("initiator", "not an origin") != "not an origin"
        and not event["params"].get("url", "data:").startswith(("data:", "file:", "chrome"))
    ]


PROBE = """<img alt="" src="http://127.0.0.1:9/outside.png">
<script>addEventListener("load", () => {
  document.title = JSON.stringify([...document.images].map(image => image.naturalWidth));
});</script></body>"""


@pytest.mark.slow
def test_a_real_browser_shows_the_page(chromium: str, made: Path, tmp_path: Path) -> None:
    page, log, shot = made / "index.html", tmp_path / "net.json", tmp_path / "page.png"
    shown = browse(chromium, tmp_path, page, f"--log-net-log={log}", "--dump-dom")
    assert all(f">{figure.title}</h2>" in shown for figure in FIGURES.values())
    assert requested(log) == []
    browse(chromium, tmp_path, page, "--window-size=1200,3000", f"--screenshot={shot}")
    picture = imread(shot)
    assert picture.shape[:2] == (3000, 1200)
    # The page is not white: lines and bars in many colours are there.
    assert len(np.unique(picture[::3, ::3, :3].reshape(-1, 3), axis=0)) > 100


@pytest.mark.slow
def test_all_images_decode_in_a_real_browser(chromium: str, made: Path, tmp_path: Path) -> None:
    text = (made / "index.html").read_text(encoding="utf-8")
    # The page allows no script, so the copy that measures its images does without that rule; it also asks for an image
    # from outside, which shows that such a request would be noticed.
    probed, log = tmp_path / "probed.html", tmp_path / "net.json"
    text, rules = re.subn(r"<meta http-equiv=[^>]*>", "", text)
    assert rules == 1
    probed.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    shown = browse(chromium, tmp_path, probed, f"--log-net-log={log}", "--dump-dom")
    found = re.search(r"<title>(\[.*?\])</title>", shown)
    assert found
    *widths, outside = json.loads(found[1])
    assert len(widths) == len(list(made.glob("*.png")))
    assert min(widths) > 0
    assert outside == 0
    assert "http://127.0.0.1:9/outside.png" in requested(log)


def test_a_browser_of_the_user_is_used_as_it_is() -> None:
    environment = os.environ | {"OPTSTREAM_TEST_CHROMIUM": "/bin/true"}
    found = subprocess.run([SCRIPT], env=environment, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "/bin/true\n")


@pytest.mark.parametrize(("ci", "code"), [("", 77), ("false", 77), ("true", 1)])
def test_a_missing_browser_skips_except_in_continuous_integration(ci: str, code: int) -> None:
    environment = os.environ | {"OPTSTREAM_TEST_CHROMIUM": "/nowhere", "CI": ci}
    found = subprocess.run([SCRIPT], env=environment, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (code, "")
    assert found.stderr
