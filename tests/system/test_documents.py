"""The Python examples of the documents run, in order, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    namespace: dict[str, object] = {}
    for example in examples:
        exec(compile(example, document.name, "exec"), namespace)  # noqa: S102


CITED = re.compile(r"`((?:tests|python|rust|tools|examples|docs)/[\w./-]+?)`")
"""Files and folders that a document names."""
NAMED = re.compile(r"`(test_\w+)`")
"""Tests that a document names."""
WRITTEN = [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", WRITTEN, ids=lambda path: path.name)
def test_what_is_cited_exists(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in CITED.findall(text) if not (ROOT / path).exists()]
    assert not missing
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests += "\n".join(path.read_text() for path in (ROOT / "rust").rglob("*.rs"))
    assert not [name for name in NAMED.findall(text) if f"{name}(" not in tests]
