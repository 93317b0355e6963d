"""One page that holds everything: pictures inside, no script, nothing from a network."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from optstream.reproduce.tables import HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optstream.reproduce.tables import Row

__all__ = ["Section", "page"]

STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 72rem; padding: 2rem 1.5rem 6rem; color: #1c1c1e; background: #fcfcfa;
  font: 17px/1.55 Georgia, "Times New Roman", serif; }
h1, h2, nav, table, summary, .meta { font-family: system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.3rem; margin: 3.2rem 0 .4rem; padding-top: .8rem; border-top: 1px solid #d9d9d4; }
p { max-width: 46rem; }
.meta { color: #5c5c61; font-size: .85rem; }
nav { background: #f1f1ec; border-radius: 8px; padding: .9rem 1.2rem; font-size: .92rem; margin: 1.5rem 0; }
nav ol { columns: 2; margin: .2rem 0 0; padding-left: 1.4rem; }
a { color: #0b5394; }
blockquote { margin: .6rem 0 1rem; padding-left: .9rem; border-left: 3px solid #d55e00; color: #444; max-width: 46rem; }
figure { margin: 1.2rem 0; }
figure img { max-width: 100%; height: auto; background: white; border: 1px solid #e4e4df; border-radius: 6px; }
figcaption { font-size: .85rem; color: #5c5c61; }
details { margin: .8rem 0; overflow-x: auto; }
summary { cursor: pointer; font-size: .9rem; color: #0b5394; }
table { border-collapse: collapse; font-size: .78rem; margin-top: .6rem; }
th, td { padding: .15rem .7rem .15rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid #ececE6; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.broken { color: #b00020; font-weight: 600; }
@media (max-width: 40rem) { nav ol { columns: 1; } }
@media print { details { display: none; } }
"""
NUMBERS = {"alpha", "epsilon", "true_epsilon", "mean", "low", "high", "log10", "trials"}
COLUMNS = HEADER[1:]


@dataclass(frozen=True)
class Section:
    """What the page says of one figure."""

    name: str
    title: str
    claim: str
    pictures: Mapping[str, tuple[bytes, str]]
    """PNG files with words for who cannot see them."""
    rows: Sequence[Row]


def page(sections: Sequence[Section], about: str) -> str:
    """Return the page.

    Args:
        sections: What it shows.
        about: How it was made.
    """
    contents = "".join(f'<li><a href="#{section.name}">{escape(section.title)}</a></li>' for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>The evaluation of OptStream, reproduced</title>
<style>{STYLE}</style>
</head>
<body>
<h1>The evaluation of OptStream, reproduced</h1>
<p class="meta">{escape(about)}</p>
<p>Every figure is shown in two calibrations. <em>Sound</em> noise makes any window of w consecutive steps cost exactly
the epsilon that is asked for. <em>As printed</em> is the noise of the paper's formulas, which costs more: the true
epsilon of the worst window stands beside every bar, in red where it is larger than asked for. The words at an orange
line say what the paper claims of a figure.</p>
<nav aria-label="Contents"><strong>Contents</strong><ol>{contents}</ol></nav>
<main>
{"".join(_section(section) for section in sections)}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    pictures = "".join(
        f'<figure><img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
        f"<figcaption>{escape(words)}</figcaption></figure>\n"
        for data, words in section.pictures.values()
    )
    return f"""<section id="{section.name}" aria-labelledby="{section.name}-title">
<h2 id="{section.name}-title">{escape(section.title)}</h2>
<blockquote>{escape(section.claim)}</blockquote>
{pictures}{_table(section.rows)}</section>
"""


def _table(rows: Sequence[Row]) -> str:
    head = "".join(_cell("th", column, column.replace("_", " ")) for column in COLUMNS)
    body = "\n".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return (
        f"<details><summary>The numbers: {len(rows)} rows</summary><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></details>\n"
    )


def _cells(row: Row) -> str:
    broken = row.true_epsilon is not None and row.true_epsilon > row.epsilon
    return "".join(
        _cell("td", column, text, broken=broken and column == "true_epsilon")
        for column, text in zip(COLUMNS, row.cells[1:], strict=True)
    )


def _cell(tag: str, column: str, text: str, *, broken: bool = False) -> str:
    kinds = [kind for kind, on in (("number", column in NUMBERS), ("broken", broken)) if on]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"
