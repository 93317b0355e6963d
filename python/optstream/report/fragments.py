"""What notebooks show of releases, statements, tunings and ledgers: pieces of a report, with styles of their own."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from optstream.privacy.budget import shown
from optstream.report import words
from optstream.report.chart import line_chart
from optstream.report.content import Names, release_subject
from optstream.report.page import table

if TYPE_CHECKING:
    from optstream.ledger import Ledger
    from optstream.mechanism.release import Release
    from optstream.mechanism.tree_release import TreeRelease
    from optstream.mechanism.tuning import Tuning
    from optstream.privacy.statement import Statement

__all__ = ["ledger_html", "release_html", "statement_html", "tuning_html"]

STYLE = """<style>
.optstream { max-width: 960px; } .optstream svg { width: 100%; height: auto; } .optstream svg text { fill: currentColor;
opacity: .7; font: 12px system-ui, sans-serif; } .optstream .grid { stroke: currentColor; opacity: .15; fill: none; }
.optstream .axis, .optstream .tick { stroke: currentColor; opacity: .5; fill: none; }
.optstream .line { stroke: #2f81d6; stroke-width: 1.6; fill: none; } .optstream .band { fill: #2f81d6; opacity: .22; }
.optstream .scroll { overflow-x: auto; } .optstream th, .optstream td { text-align: left; }
.optstream .number { text-align: right; }
</style>"""


def release_html(release: Release | TreeRelease) -> str:
    """Return the first series of a release with its band, and what is promised."""
    names = Names()
    subject = release_subject(release, names)
    line = subject.lines[0]
    chart = line_chart(line, subject.labels, subject.w, "")
    others = len(subject.lines) + subject.left_out - 1
    more = f"<p>{escape(line.name)}, and {others:,} other nodes.</p>" if others else ""
    said = escape(f"{words.off(subject, line, names)} {words.plainly(subject.guarantee, names)}")
    return _box(f"<p><strong>{escape(repr(release))}</strong></p>{more}{chart}<p>{said}</p>")


def statement_html(statement: Statement) -> str:
    """Return what is promised in plain words, then the statement itself."""
    names = Names()
    promised = words.promise(statement.guarantee, statement.epsilon, names, several=statement.several)
    said = [words.plainly(statement.guarantee, names), *promised]
    plain = "".join(f"<p>{escape(text)}</p>" for text in said)
    rows = [(stage.name, stage.does, shown(stage.epsilon)) for stage in statement.stages]
    stages = table("Stages, and what the worst window of each costs", ("stage", "what it does", "epsilon"), rows)
    musts = "".join(
        f"<li>{escape(words.assumption(one, statement.guarantee, names))}</li>" for one in statement.assumptions
    )
    return _box(f"{plain}<p>{escape(statement.scope)}</p>{stages}<p>What must be true:</p><ul>{musts}</ul>")


def tuning_html(tuning: Tuning) -> str:
    """Return the best rows of the table of a tuning."""
    rows = [
        (
            *row.described,
            f"{row.expected_error:.4g}",
            "chosen" if row is tuning.chosen else "plain Laplace" if row is tuning.plain else "",
        )
        for row in tuning.shown()
    ]
    heads = ("measured", "noise", "values", "expected error", "")
    return _box(table(f"The best of {len(tuning.table):,} mechanisms with the same guarantee", heads, rows))


def ledger_html(ledger: Ledger) -> str:
    """Return the streams of a ledger with what they were promised and have used."""
    rows = []
    for stream in ledger.streams:
        policy, left, entries = ledger.policy(stream), ledger.remaining(stream).epsilon, ledger.history(stream)
        used = policy.epsilon - left
        rows.append(
            (
                stream,
                f"{shown(used) if used else '0'} of {shown(policy.epsilon)} in {words.span(policy.w, None)}",
                f"{sum(entry.released is not None for entry in entries):,} of {len(entries):,}",
            )
        )
    heads = ("stream", "epsilon used by the dearest window", "released of charged periods")
    note = "<p>A budget that is used up is normal: every new window has one of its own.</p>"
    return _box(f"<p><strong>{escape(repr(ledger))}</strong></p>{table('Streams', heads, rows)}{note}")


def _box(content: str) -> str:
    return f'<div class="optstream">{STYLE}{content}</div>'
