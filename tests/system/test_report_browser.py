"""Reports in a real browser: light, dark, narrow and on paper, with a silent console, and charts that react."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

import optstream as ops

if TYPE_CHECKING:
    from pathlib import Path

W = 24
NODES = {"city": {"north": ["hill", "park"], "south": ["docks"]}}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a ledger with a tree of two weeks and a plain stream with a gap."""
    folder = tmp_path_factory.mktemp("report")
    guarantee = ops.Guarantee(epsilon=1, w=W)
    tree = ops.Hierarchy.nested(NODES)
    steps = np.arange(14 * W)
    day = 400 + 300 * np.sin(steps / W * 2 * np.pi)
    with ops.Ledger(folder / "ledger.db", create=True) as ledger:
        trips = ops.OptStream(guarantee, sample=ops.BucketSampling(k=12), bounds=(0, 2000), hierarchy=tree)
        ledger.release(trips, dict.fromkeys(tree.leaves, day), stream="trips")
        loads = ops.OptStream(guarantee, sample=ops.EqualSampling(k=12), bounds=(0, 2000))
        for period in (0, 1, 5):
            ledger.release(loads, day[:W], stream="loads <b>", period=period)
        ledger.report(folder / "report.html", title="Trips & loads", entity="one rider", unit="trips")
    return folder / "report.html"


def browse(chromium: str, folder: Path, page: Path, *options: str) -> tuple[str, str]:
    """Open a page in a browser that reaches nothing; return what it prints and what its console said."""
    arguments = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def colours(path: Path) -> int:
    return len(np.unique(imread(path)[::2, ::2, :3].reshape(-1, 3), axis=0))


@pytest.mark.parametrize(
    ("size", "scheme", "back"),
    [("1200,2400", 1, 1.0), ("1200,2400", 0, 0.1), ("500,2400", 1, 1.0)],
    ids=["light", "dark", "narrow"],
)
def test_a_browser_shows_the_page_and_its_console_is_silent(
    size: str, scheme: int, back: float, chromium: str, page: Path, tmp_path: Path
) -> None:
    shot = tmp_path / "page.png"
    options = [f"--window-size={size}", f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={shot}"]
    _, console = browse(chromium, tmp_path, page, "--hide-scrollbars", *options)
    assert console == ""
    assert colours(shot) > 30
    assert float(imread(shot)[2, 2, :3].mean()) == pytest.approx(back, abs=0.08)


def test_the_page_prints(chromium: str, page: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    _, console = browse(chromium, tmp_path, page, f"--print-to-pdf={paper}")
    assert console == ""
    assert paper.read_bytes().startswith(b"%PDF")
    assert paper.stat().st_size > 20_000


# Run after the page's own script, as a reader would act.
ACT = """
const said = {};
const article = [...document.querySelectorAll("article")].find((one) => one.querySelector("select.lines"));
const shown = () => [...article.querySelectorAll(".panel")].filter((one) => !one.hidden);
const wait = () => new Promise((done) => setTimeout(done, 200));
(async () => {
  await wait();
  said.first = shown().length;
  const picker = article.querySelector("select.lines");
  picker.selectedIndex = 3;
  picker.dispatchEvent(new Event("change"));
  await wait();
  const box = shown()[0].querySelector(".chart"), svg = box.querySelector("svg"), plot = box.querySelector(".plot");
  said.picked = [picker.value.trim(), box.dataset.line, svg.getAttribute("aria-label")];
  const line = () => svg.querySelector(".line").getAttribute("d").split(" ").length;
  said.all = line();
  const button = (name) => [...box.querySelectorAll("button")].find((one) => one.textContent === name);
  button("Zoom in").click();
  said.half = line();
  button("Later").click();
  said.range = box.querySelector("output").textContent;
  button("Show all").click();
  said.again = line();
  for (const key of ["End", "ArrowLeft"]) plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  said.reading = box.querySelector("output").textContent;
  const at = svg.getBoundingClientRect();
  const event = { clientX: at.left + at.width / 2, clientY: at.top + 50, bubbles: true };
  svg.dispatchEvent(new PointerEvent("pointermove", event));
  said.hover = [box.querySelector("output").textContent, svg.querySelectorAll(".dot").length];
  said.wide = document.documentElement.scrollWidth <= innerWidth;
  document.title = JSON.stringify(said);
})();
"""


@pytest.mark.parametrize("size", ["1200,900", "500,900"])
def test_charts_zoom_pan_and_read_out_and_nodes_are_chosen(
    size: str, chromium: str, page: Path, tmp_path: Path
) -> None:
    text = page.read_text(encoding="utf-8")
    # The page allows no other script, so the copy with a reader's actions does without that rule.
    text, rules = re.subn(r"<meta http-equiv=[^>]*>", "", text)
    assert rules == 1
    acted = tmp_path / "acted.html"
    acted.write_text(text.replace("</body>", f"<script>{ACT}</script></body>"), encoding="utf-8")
    dom, console = browse(chromium, tmp_path, acted, f"--window-size={size}", "--dump-dom")
    assert console == ""
    found = re.search(r"<title>(\{.*?\})</title>", dom)
    assert found
    said = json.loads(found[1])
    assert said["first"] == 1
    assert said["picked"][:2] == ["hill", "3"]
    assert said["picked"][2].startswith("hill: a line from step 0 to step 335")
    assert said["all"] == said["again"] == 14 * W
    assert said["half"] == pytest.approx(7 * W, abs=2)
    assert re.fullmatch(r"step \d+ to step 335", said["range"])
    assert re.fullmatch(r"step 334: -?[\d,.]+ trips, band -?[\d,.]+ to -?[\d,.]+", said["reading"])
    assert re.match(r"step 1\d\d: ", said["hover"][0])
    assert said["hover"][1] == 1
    assert said["wide"]


def test_the_rule_of_the_page_stops_any_other_script(chromium: str, page: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    text = page.read_text(encoding="utf-8").replace("</body>", "<script>document.title = 'taken over'</script></body>")
    other.write_text(text, encoding="utf-8")
    dom, console = browse(chromium, tmp_path, other, "--dump-dom")
    assert "<title>Trips &amp; loads</title>" in dom
    assert "Content Security Policy" in console


def test_without_its_script_every_chart_is_there(chromium: str, page: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.html"
    text = re.sub(r"<script>.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    act = "document.title = [...document.querySelectorAll('svg')].filter((one) => one.clientHeight > 100).length;"
    text = re.sub(r"<meta http-equiv=[^>]*>", "", text).replace("</body>", f"<script>{act}</script></body>")
    plain.write_text(text, encoding="utf-8")
    dom, _ = browse(chromium, tmp_path, plain, "--dump-dom")
    # Six nodes and the stream, and the budget of both.
    assert "<title>9</title>" in dom
