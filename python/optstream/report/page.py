"""The page: one file with everything in it, that asks no network for anything and works without its script."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from html import escape
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from optstream.privacy.budget import shown
from optstream.report import words
from optstream.report.chart import budget_chart, line_chart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from optstream.report.content import Line, Names, Subject

__all__ = ["page", "table"]

MOST_ROWS = 1000
"""Rows of a table of steps or periods; all figures can be saved from the page."""


def page(subjects: Sequence[Subject], names: Names) -> str:
    """Return the page of one release, or of some streams of a ledger."""
    style, script = (files("optstream.report").joinpath(f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    allowed = base64.b64encode(sha256(script.encode()).digest()).decode()
    # Only the one script runs: what a name or a title holds never does, should it ever escape its escaping.
    rules = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    title = escape(names.title or (subjects[0].name if len(subjects) == 1 else "Private figures"))
    several = len(subjects) > 1
    links = (
        [(f"subject-{index}", subject.name) for index, subject in enumerate(subjects)]
        if several
        else [(f"{key}-0", words_) for key, words_ in _sections(subjects)]
    )
    navigation = "".join(f'<li><a href="#{key}">{escape(text)}</a></li>' for key, text in links)
    articles = "".join(_article(index, subject, names, several=several) for index, subject in enumerate(subjects))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the figures</a>
<header>
<h1>{title}</h1>
<p class="lead">{_opening(subjects, names)}</p>
<nav aria-label="Contents"><ul>{navigation}</ul></nav>
</header>
<main id="main">
{articles or "<p>The ledger has no streams.</p>"}
</main>
<footer><p>Made by optstream {escape(version("optstream"))} from published figures only: this page was made
without any private data.</p></footer>
<script>{script}</script>
</body>
</html>
"""


def _opening(subjects: Sequence[Subject], names: Names) -> str:
    whom = {names.whom(subject.guarantee) for subject in subjects}
    one = whom.pop() if len(whom) == 1 else names.entity or "one person"
    return escape(
        f"These figures were changed a little, at random, so that they show how things are without giving away what "
        f"{one} did. This page says what that protects, and how far the figures can be trusted."
    )


def _sections(subjects: Sequence[Subject]) -> list[tuple[str, str]]:
    all_of = [
        ("figures", "The figures"),
        ("promise", "What is promised"),
        ("off", "How far they are off"),
        ("assumptions", "What must be true"),
        ("budget", "Budget used"),
        ("appendix", "Exact numbers"),
    ]
    return [(key, text) for key, text in all_of if subjects and (key != "budget" or subjects[0].budget is not None)]


def _article(index: int, subject: Subject, names: Names, *, several: bool) -> str:
    head = "h3" if several else "h2"
    title = f'<h2 id="subject-{index}">{escape(subject.name)}</h2>' if several else ""
    bodies = {
        "figures": _facts(subject, names) + _figures(index, subject, names),
        "promise": _promise(subject, names),
        "off": _off(subject, names),
        "assumptions": _assumptions(index, subject, names),
        "budget": _budget(subject, names),
        "appendix": _appendix(subject, "h4" if several else "h3"),
    }
    sections = "".join(
        f'<section aria-labelledby="{key}-{index}"><{head} id="{key}-{index}">{text}</{head}>{bodies[key]}</section>\n'
        for key, text in _sections([subject])
    )
    label = f'aria-labelledby="subject-{index}"' if several else f'aria-label="{escape(subject.name)}"'
    return (
        f'<article {label}>{title}{sections}<script type="application/json" class="data">{_data(subject, names)}'
        "</script></article>\n"
    )


def _facts(subject: Subject, names: Names) -> str:
    periods = sum(int(np.isfinite(line.values).sum()) for line in subject.lines[:1]) // subject.w
    facts = [
        ("Published", f"{periods:,} period{'s' * (periods != 1)} of {words.span(subject.w, names.step)}"),
        ("Protects", f"any {words.span(subject.w, names.step)} of {names.whom(subject.guarantee)}"),
        ("An onlooker can become sure", f"from 50 to at most {_chance(subject)} in 100"),
    ]
    if subject.lines:
        unit = f" {names.unit}" if names.unit else ""
        moved = (
            "Half the figures are off by less than" if subject.estimated else "Noise moves half the figures less than"
        )
        facts.insert(1, (moved, _typical(subject.lines[0]) + unit))
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def _typical(line: Line) -> str:
    return f"about {words.figure(float(np.nanmean(line.half)))}"


def _chance(subject: Subject) -> str:
    return f"{np.ceil(words.sureness(subject.epsilon) * 1000) / 10:g}"


def _figures(index: int, subject: Subject, names: Names) -> str:
    if not subject.lines:
        return "<p>Nothing has been published yet.</p>"
    options = "".join(f"<option>{'&#160;&#160;' * line.depth}{escape(line.name)}</option>" for line in subject.lines)
    picker = (
        f'<p class="picker screen" hidden><label for="pick-{index}">Show </label>'
        f'<select class="lines" id="pick-{index}">{options}</select></p>'
        if len(subject.lines) > 1
        else ""
    )
    left_out = ""
    if subject.left_out:
        left_out = (
            f'<p class="soft">{subject.left_out:,} further places are not on this page, which would grow too large; '
            "they are in the release itself.</p>"
        )
    panels = "".join(_panel(number, line, subject, names) for number, line in enumerate(subject.lines))
    return f"{picker}{panels}{left_out}"


def _panel(number: int, line: Line, subject: Subject, names: Names) -> str:
    holds = "the true value" if subject.estimated else "what the value would be without noise"
    name = f"<strong>{escape(line.name)}.</strong> " if len(subject.lines) > 1 else ""
    chart = line_chart(line, subject.labels, subject.w, names.unit)
    return f"""<figure class="panel"><div class="chart" data-line="{number}">
<div class="tools" hidden><output aria-live="polite"></output></div><div class="plot">{chart}</div></div>
<figcaption>{name}<span class="legend"><span><span class="key line"></span>published figures</span>
<span><span class="key band"></span>band that holds {holds} 19 times in 20</span></span></figcaption>
<details><summary>{escape(line.name)} as a table, period by period</summary>
{_periods(line, subject)}</details></figure>
"""


def _periods(line: Line, subject: Subject) -> str:
    """Return one row for every period: what a chart shows, for who cannot see it."""
    starts = _starts(line.values, subject.w)
    rows = []
    for start in starts[:MOST_ROWS]:
        part = slice(start, start + subject.w)
        values, reach = line.values[part], (line.high[part] - line.low[part]) / 2
        numbers = (values.mean(), values.min(), values.max(), reach.mean())
        rows.append((subject.labels[start], *(words.figure(float(number)) for number in numbers)))
    caption = f"{line.name}: every published period"
    if len(starts) > MOST_ROWS:
        caption = f"{line.name}: the first {MOST_ROWS:,} of {len(starts):,} published periods"
    return table(caption, ("from", "mean", "lowest", "highest", "band reaches ±"), rows, numbers=4)


def _starts(values: NDArray[np.float64], w: int) -> list[int]:
    """Return where periods begin; between two that do not follow each other is one empty step."""
    starts, at = [], 0
    while at < len(values):
        if np.isfinite(values[at]):
            starts.append(at)
            at += w
        else:
            at += 1
    return starts


def _promise(subject: Subject, names: Names) -> str:
    said = [f"<p>{escape(words.plainly(subject.guarantee, names))}</p>"]
    rest = words.promise(subject.guarantee, subject.epsilon, names, several=subject.several)
    warnings = [text for text in rest if text.startswith(("WARNING", "That is a weak"))]
    plain = "".join(f"<p>{escape(text)}</p>" for text in rest if text not in warnings)
    warned = "".join(f'<p class="warning" role="note">{escape(text)}</p>' for text in warnings)
    limits = "".join(
        f"<li>{escape(text)}</li>" for text in words.limits(subject.guarantee, names, several=subject.several)
    )
    scope = (
        "" if subject.budget or subject.statement is None else f"<p>{escape(words.scope(subject.statement.scope))}</p>"
    )
    return (
        f'<div class="promise lead">{"".join(said)}</div>{plain}{warned}{scope}<p>What is <em>not</em> promised:</p>'
        f'<ul class="words">{limits}</ul>'
    )


def _off(subject: Subject, names: Names) -> str:
    if not subject.lines:
        return "<p>Nothing has been published yet.</p>"
    told = f"<p>{escape(words.off(subject, subject.lines[0], names))}</p>"
    causes = (
        "The band is what a model of the series, learnt from published figures alone, believes of the true value. It "
        "is as good as that model: rare peaks may lie outside it more often."
        if subject.estimated
        else "The band is about the noise that was added. Not every step may have been measured: figures in between "
        "follow from their neighbours, and true values outside the bounds in the appendix are cut off. That comes on "
        "top."
    )
    if subject.hierarchy is not None:
        causes += " Figures of places are made to add up, which brings them closer to the truth than the band says."
    rows = [
        (
            line.name,
            words.figure(float(np.nanmean(line.values))),
            words.figure(float(np.nanmean(line.half))),
            words.figure(float(np.nanmean((line.high - line.low) / 2))),
        )
        for line in subject.lines
    ]
    heads = ("figures for", "mean figure", "half are within ±", "19 in 20 are within ±")
    caption = f"Typical distances{f' in {names.unit}' if names.unit else ''}"
    return f"{told}<p>{escape(causes)}</p>{table(caption, heads, rows, numbers=3)}"


def _assumptions(index: int, subject: Subject, names: Names) -> str:
    items = "".join(
        f'<li><label for="must-{index}-{number}"><input type="checkbox" id="must-{index}-{number}">'
        f"<span>{escape(words.assumption(text, subject.guarantee, names))}</span></label></li>"
        for number, text in enumerate(subject.assumptions)
    )
    return (
        "<p>The promise rests on these points. No software can check them; whoever publishes the figures vouches for "
        f'each.</p><ul class="checklist">{items}</ul>'
    )


def _budget(subject: Subject, names: Names) -> str:
    budget = subject.budget
    if budget is None:
        return ""
    window = words.span(subject.w, names.step)
    used, allowed = shown(budget.used) if budget.used else "0", shown(budget.policy.epsilon)
    void = sum(entry.void is not None for entry in budget.entries)
    spoilt = f" {void} of them failed after their budget was spent and are never published." if void else ""
    rows = [
        (
            str(entry.period),
            shown(entry.epsilon),
            f"{entry.charged:%Y-%m-%d %H:%M}",
            f"{entry.released:%Y-%m-%d %H:%M}" if entry.released else ("never: void" if entry.void else "not yet"),
        )
        for entry in budget.entries[-MOST_ROWS:]
    ]
    caption = f"The last {len(rows):,} charged periods" if len(budget.entries) > MOST_ROWS else "Every charged period"
    heads = ("period", "epsilon on its own", "charged (UTC)", "published (UTC)")
    charged = f"{len(budget.entries):,} period{'s were' if len(budget.entries) != 1 else ' was'} charged.{spoilt}"
    return f"""<p>Every stretch of {escape(window)} has a budget, called epsilon, of {allowed}. The dearest stretch has
used {used}. <strong>A budget that is used up is normal</strong>: it is what makes the figures as exact as the promise
allows, and time brings new stretches with budgets of their own. {charged}</p>
<figure><div class="chart">{budget_chart(budget, names)}</div><figcaption>Epsilon used by the stretch that begins at
each step. Nothing may rise above the dashed line.</figcaption></figure>
<details><summary>The periods as a table</summary>{table(caption, heads, rows)}</details>
"""


def _appendix(subject: Subject, head: str) -> str:
    guarantee, statement = subject.guarantee, subject.statement
    rows = [
        ("epsilon promised for every window", _exact(guarantee.epsilon)),
        ("epsilon of the dearest window", _exact(subject.epsilon)),
        ("w, steps of a window and of a period", f"{guarantee.w:,}"),
        (f"alpha, most change of one step by one {guarantee.entity}", f"{guarantee.alpha!r}"),
        ("in a hierarchy", f"they are {guarantee.entities}"),
        ("windows", "any consecutive steps" if guarantee.neighbours == "sliding" else "within one period"),
    ]
    stages = ""
    if statement is not None:
        rows += [
            ("values are cut off at", f"{statement.bounds[0]!r} and {statement.bounds[1]!r}"),
            ("values are multiples of", f"{statement.grid!r}"),
            ("calibration", statement.calibration),
            ("released by", f"optstream {statement.version}"),
        ]
        parts = [
            (words.stage_name(stage.name, subject.hierarchy), stage.does, _exact(stage.epsilon))
            for stage in statement.stages
        ]
        stages = table("Stages, and what the dearest window of each costs", ("stage", "what it does", "epsilon"), parts)
    technical = "".join(f"<li>{escape(text)}</li>" for text in subject.assumptions)
    facts = table("Settings", ("", ""), rows)
    scope = "" if statement is None else f"<p>{escape(statement.scope)}</p>"
    return f"""{facts}{stages}<{head}>As the software states it</{head}>{scope}<ul class="words">{technical}</ul>
<details><summary>The published figures</summary>{_steps(subject)}</details>
<p class="screen"><button type="button" class="save" hidden>Save all figures as CSV</button></p>"""


def _steps(subject: Subject) -> str:
    lines = subject.lines
    known = [at for at in range(len(subject.labels)) if lines and np.isfinite(lines[0].values[at])]
    kept = known[: max(1, MOST_ROWS // max(len(lines), 1))]
    rows = [
        (
            subject.labels[at],
            line.name,
            repr(float(line.values[at])),
            *(f"{end[at]:.6g}" for end in (line.low, line.high)),
        )
        for at in kept
        for line in lines
    ]
    caption = "Every published figure, exactly"
    if len(kept) < len(known):
        caption = f"The first {len(kept):,} of {len(known):,} steps, exactly; the button below saves all of them"
    return table(caption, ("step", "name", "figure", "band from", "to"), rows, numbers=3)


def _exact(epsilon: Any) -> str:
    short = shown(epsilon) if epsilon else "0"
    return short if str(epsilon) == short else f"{short} (exactly {epsilon})"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> str:
    """Return a table that scrolls by itself; the last so many columns are numbers."""
    first = len(heads) - numbers
    titles = "".join(f"<th scope='col'{_kind(column, first)}>{escape(text)}</th>" for column, text in enumerate(heads))
    head = f"<thead><tr>{titles}</tr></thead>" if any(heads) else ""
    body = "".join(f"<tr>{_row(row, first)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[str], first: int) -> str:
    rest = "".join(f"<td{_kind(column, first)}>{escape(text)}</td>" for column, text in enumerate(row[1:], start=1))
    return f"<th scope='row'>{escape(row[0])}</th>{rest}"


def _kind(column: int, first: int) -> str:
    return " class='number'" if column >= first else ""


def _data(subject: Subject, names: Names) -> str:
    """Return what the script reads, as JSON in which nothing can end the element that holds it."""
    content = {
        "w": subject.w,
        "unit": names.unit,
        "labels": subject.labels,
        "lines": [
            {
                "name": line.name,
                "values": [float(value) if np.isfinite(value) else None for value in line.values],
                "low": _rounded(line.low),
                "high": _rounded(line.high),
            }
            for line in subject.lines
        ],
    }
    text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _rounded(ends: NDArray[np.float64]) -> list[float | None]:
    return [float(f"{end:.6g}") if np.isfinite(end) else None for end in ends]
