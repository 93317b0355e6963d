"""The documentation site: it builds without a warning, its links lead somewhere, and a browser shows it offline."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import pytest

import optstream

ROOT = Path(__file__).parents[2]
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


def copy_sources(folder: Path) -> Path:
    """Copy what the site is made of, so that building it leaves the project alone."""
    for name in ("docs", "python"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (folder / "tools").mkdir()
    for name in ("zensical.toml", "SECURITY.md", "tools/docstring_roles.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", "zensical.toml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_sources(tmp_path_factory.mktemp("site"))
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "No issues found" in built.stdout + built.stderr
    return folder / "build" / "site"


class Page(HTMLParser):
    """The anchors, links and embedded files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.embedded: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.update(name for name in (given.get("id"), given.get("name") if tag == "a" else None) if name)
        if tag == "a" and given.get("href") is not None:
            self.links.append(given["href"] or "")
        elif tag == "link" and given.get("href"):
            self.embedded.append(given["href"] or "")
        elif given.get("src"):
            self.embedded.append(given["src"] or "")
        if tag == "img":
            self.images.append(given)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # The page for addresses that do not exist is shown at any of them, so its links are absolute.
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def broken(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    """Return whether a link of a page within the site leads nowhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return False
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return True
    fragment = unquote(parts.fragment)
    return bool(fragment) and target in pages and fragment not in pages[target].ids | {"__top", "top"}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    found = {str(path): [link for link in page.links if broken(path, link, pages)] for path, page in pages.items()}
    assert not {path: links for path, links in found.items() if links}
    assert sum(len(page.links) for page in pages.values()) > 500
    some = next(iter(pages))
    assert broken(some, "nowhere.html", pages)
    assert broken(some, "#nowhere", pages)


def test_pages_embed_only_files_of_the_site(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for name in page.embedded:
            parts = urlsplit(name)
            assert parts.scheme in {"", "data"}, f"{path} asks for {name}"
            assert parts.scheme or not parts.netloc, f"{path} asks for {name}"
            assert parts.scheme or (path.parent / unquote(parts.path)).resolve().exists(), f"{path} has no {name}"
        assert all(image.get("alt") for image in page.images)


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    linked = {(site / unquote(urlsplit(link).path)).resolve() for link in pages[site / "index.html"].links}
    written = {site / path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert not written - linked - {site / "index.html"}


def test_the_reference_has_every_public_name(site: Path, pages: dict[Path, Page]) -> None:
    ids = set().union(*(page.ids for path, page in pages.items() if path.parent == site / "reference"))
    assert not [name for name in optstream.__all__ if f"optstream.{name}" not in ids and name != "__version__"]
    packages = {
        name: import_module(f"optstream.{name}").__all__ for name in ("audit", "baselines", "evaluate", "spark")
    }
    assert not [name for package, all_ in packages.items() for name in all_ if f"optstream.{package}.{name}" not in ids]
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    assert "optstream.__version__" in text
    assert not re.search(r":(?:class|func|meth|attr|mod):", text), "a role of Sphinx is shown as it is written"


@pytest.mark.parametrize(
    "wrong", ["[nowhere](nowhere.md)", "[nowhere](privacy.md#nowhere)", "[nowhere][optstream.Nowhere]"]
)
def test_a_link_that_leads_nowhere_stops_the_build(tmp_path: Path, wrong: str) -> None:
    folder = copy_sources(tmp_path)
    page = folder / "docs" / "faq.md"
    page.write_text(page.read_text() + f"\n{wrong}\n")
    assert build(folder).returncode != 0


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_can_be_read_aloud_and_stands_alone(picture: Path) -> None:
    text = picture.read_text()
    root = ET.fromstring(text)  # noqa: S314  (our own file)
    for name in ("title", "desc"):
        element = root.find(f"{{http://www.w3.org/2000/svg}}{name}")
        assert element is not None
        assert element.text
    assert not re.search(r"href|url\(|@import|<script", text)
    assert any(picture.name in page.read_text() for page in (ROOT / "docs").rglob("*.md"))


def browse(chromium: str, folder: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page in a browser that reaches nothing; what the page logs is in standard error."""
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
        "--virtual-time-budget=10000",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done


def logged(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a page wrote to the console."""
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def requested(log: Path) -> list[str]:
    """Return what a page asked the network for."""
    asked = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    return [
        params["url"]
        for params in asked
        if params.get("initiator", "not an origin") != "not an origin"
        and not params.get("url", "data:").startswith(("data:", "file:", "chrome"))
    ]


PROBE = """<script>addEventListener("load", () => {
  document.title = JSON.stringify([...document.images].map(image => image.naturalWidth));
});</script></body>"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown"), [("concepts.html", "A <strong>window</strong>"), ("reference/mechanisms.html", "optstream.tune")]
)
def test_a_browser_shows_a_page_without_errors(
    chromium: str, site: Path, tmp_path: Path, name: str, shown: str
) -> None:
    page, log = site / name, tmp_path / "net.json"
    done = browse(chromium, tmp_path, page, f"--log-net-log={log}", "--dump-dom")
    assert shown in done.stdout
    assert logged(done) == []
    assert requested(log) == []


@pytest.mark.slow
def test_a_browser_decodes_the_pictures_and_errors_would_be_seen(chromium: str, site: Path, tmp_path: Path) -> None:
    probed = site / "concepts-probed.html"
    noisy = '<script>console.error("seen")</script><img alt="" src="http://127.0.0.1:9/outside.png">'
    probed.write_text((site / "concepts.html").read_text(encoding="utf-8").replace("</body>", noisy + PROBE))
    log = tmp_path / "net.json"
    done = browse(chromium, tmp_path, probed, f"--log-net-log={log}", "--dump-dom")
    probed.unlink()
    found = re.search(r"<title>(\[.*?\])</title>", done.stdout)
    assert found
    *widths, outside = json.loads(found[1])
    assert len(widths) == (ROOT / "docs" / "concepts.md").read_text().count("](pictures/")
    assert min(widths) > 0
    assert outside == 0
    assert any("seen" in line for line in logged(done))
    assert "http://127.0.0.1:9/outside.png" in requested(log)
