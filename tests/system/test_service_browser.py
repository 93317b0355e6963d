"""The live page of the service in a real browser: light, dark, narrow, with and without a token; a silent console."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.image import imread

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

W = 24
TOKEN = "a-token-for-the-browser-0123456789"  # noqa: S105
PLAN = """
epsilon = 1
w = 24
alpha = 1
bounds = [0, 2000]
sample = { kind = "equal", k = 12 }
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a public stream with two days, an empty one, and a tree for whoever has the token."""
    folder = tmp_path_factory.mktemp("live")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "tree.toml").write_text(PLAN + 'hierarchy = { city = { north = ["hill"], south = ["docks"] } }')
    with ops.Ledger(folder / "ledger.db", create=True) as ledger:
        identity = ledger.identity
        for name, plan in (("loads", "plan.toml"), ("trips", "tree.toml")):
            stream = ops.Stream(ops.read_plan(folder / plan), name=name, ledger=ledger)
            values = 800 + 300 * np.sin(np.arange(2 * W + 5) / W * 2 * np.pi)
            leaves = [{"hill": value / 2, "docks": value / 3} for value in values]
            stream.push_many(range(2 * W + 5), values if name == "loads" else leaves)
    (folder / "service.toml").write_text(f"""
        [ledger]
        url = "ledger.db"
        identity = "{identity}"
        [streams.loads]
        plan = "plan.toml"
        public = true
        [streams.empty]
        plan = "plan.toml"
        public = true
        [streams.trips]
        plan = "tree.toml"
        [tokens.reader]
        sha256 = "{sha256(TOKEN.encode()).hexdigest()}"
        read = ["*"]
        """)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "optstream",
        "serve",
        "--config",
        str(folder / "service.toml"),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/"
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(OSError):
            urllib.request.urlopen(url + "readyz").close()  # noqa: S310
            break
        time.sleep(0.1)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(60)


def browse(chromium: str, folder: Path, url: str, *options: str) -> tuple[str, str]:
    """Open a page in a browser that reaches this machine alone; return what it prints and what its console said."""
    arguments = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=8000",
        *options,
        url,
    ]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.parametrize(
    ("size", "scheme", "back"),
    [("1200,900", 1, 1.0), ("1200,900", 0, 0.09), ("500,900", 1, 1.0)],
    ids=["light", "dark", "narrow"],
)
def test_a_browser_shows_the_public_streams_and_its_console_is_silent(
    size: str, scheme: int, back: float, chromium: str, address: str, tmp_path: Path
) -> None:
    shot = tmp_path / "page.png"
    options = [f"--window-size={size}", f"--blink-settings=preferredColorScheme={scheme}"]
    dom, console = browse(chromium, tmp_path, address, *options, "--dump-dom")
    assert console == ""
    assert re.findall(r'data-stream="(\w+)"', dom) == ["loads", "empty"]
    assert "the ledger is well" in dom
    assert "Nothing is released yet." in dom
    assert re.search(r"Period 1: 24 private values from -?[\d,.]+ to -?[\d,.]+, with bands of 95 %", dom)
    assert "5 of 24" in dom
    browse(chromium, tmp_path, address, *options, "--hide-scrollbars", f"--screenshot={shot}")
    picture = imread(shot)[:, :, :3]
    assert float(picture[2, 2].mean()) == pytest.approx(back, abs=0.03)
    assert len(np.unique(picture[::2, ::2].reshape(-1, 3), axis=0)) > 30


# What a reader does, in a page that brings the service's own page in.
ACT = """
const said = {};
const wait = (good) => new Promise((done, fail) => {
  let turns = 0;
  const look = () => (good() ? done() : ++turns > 100 ? fail(new Error("nothing")) : setTimeout(look, 30));
  look();
});
(async () => {
  const names = () => [...document.querySelectorAll("article h2")].map((one) => one.textContent);
  await wait(() => names().length === 2);
  const token = document.getElementById("token");
  token.value = "TOKEN";
  token.form.requestSubmit();
  await wait(() => names().length === 3);
  said.names = names();
  said.kept = token.value;
  const tree = document.querySelector('[data-stream="trips"]');
  said.nodes = [...tree.querySelectorAll("option")].map((one) => one.textContent);
  const line = (one) => document.querySelector('[data-stream="trips"] .values').getAttribute("points");
  const before = line();
  const select = tree.querySelector("select");
  select.value = "docks";
  select.dispatchEvent(new Event("change"));
  await wait(() => line() !== before);
  said.wide = document.documentElement.scrollWidth <= innerWidth;
  token.value = "a-token-that-nobody-knows-0123456789";
  token.form.requestSubmit();
  await wait(() => document.getElementById("health").textContent === "the token is not known");
  said.left = names().length;
})().catch((error) => { said.failed = String(error); }).finally(() => { document.title = JSON.stringify(said); });
"""


def test_a_token_shows_more_and_a_wrong_one_nothing(chromium: str, address: str, tmp_path: Path) -> None:
    # The service allows no other script and no frames, so a browser without that rule acts as the reader.
    def fetched(name: str) -> str:
        with urllib.request.urlopen(address + name) as answer:  # noqa: S310
            return str(answer.read().decode())

    text = fetched("").replace('<link rel="stylesheet" href="page.css">', f"<style>{fetched('page.css')}</style>")
    script = f"<script>{fetched('page.js')}\n{ACT.replace('TOKEN', TOKEN)}</script>"
    text = text.replace('<script src="page.js" defer></script>', f'<base href="{address}">').replace(
        "</body>", f"{script}</body>"
    )
    page = tmp_path / "acted.html"
    page.write_text(text, encoding="utf-8")
    dom, _ = browse(chromium, tmp_path, page.as_uri(), "--disable-web-security", "--dump-dom")
    found = re.search(r"<title>(\{.*?\})</title>", dom)
    assert found, dom[:2000]
    said = json.loads(found[1])
    assert said == {
        "names": ["loads", "empty", "trips"],
        "kept": "",
        "nodes": ["city", "north", "south", "hill", "docks"],
        "wide": True,
        "left": 0,
    }


def test_the_rule_of_the_page_lets_nothing_else_in(address: str) -> None:
    with urllib.request.urlopen(address) as answer:  # noqa: S310
        rule = answer.headers["Content-Security-Policy"]
        text = answer.read().decode()
    assert "default-src 'none'" in rule
    assert "unsafe" not in rule
    assert "http" not in text
