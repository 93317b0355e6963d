"""The Python examples of the documents run, in order, as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(document: Path) -> str:
    """Return the path of a document within the project."""
    return str(document.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_examples_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    examples = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(examples) == len(re.findall(r"``` ?\{?\.?(?:python|py)\b", text)), "a block is not written as others are"
    namespace: dict[str, object] = {}
    for example in examples:
        exec(compile(example, document.name, "exec"), namespace)  # noqa: S102


CITED = re.compile(r"`((?:tests|python|rust|tools|examples|docs)/[\w./-]+?)`")
"""Files and folders that a document names."""
NAMED = re.compile(r"`(test_\w+)`")
"""Tests that a document names."""
WRITTEN = [*DOCUMENTS, ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("document", WRITTEN, ids=name_of)
def test_what_is_cited_exists(document: Path) -> None:
    text = document.read_text()
    missing = [path for path in CITED.findall(text) if not (ROOT / path).exists()]
    assert not missing
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests += "\n".join(path.read_text() for path in (ROOT / "rust").rglob("*.rs"))
    assert not [name for name in NAMED.findall(text) if f"{name}(" not in tests]
