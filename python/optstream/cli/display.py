"""What people read: tables in colour on a terminal, aligned text elsewhere."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optstream.cli.exits import emit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from optstream.privacy.statement import Statement

__all__ = ["print_statement", "print_table", "show_left", "working"]


def working(message: str) -> AbstractContextManager[Any]:
    """Show a message with a spinner while something runs, if a person looks at standard error."""
    console = Console(stderr=True)
    return console.status(message, spinner="line") if console.is_terminal else nullcontext()


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a title; an empty header leaves out the line of headings."""
    if sys.stdout.isatty():
        table = Table(title=Text(title), title_justify="left", title_style="bold", show_header=any(header))
        for name in header:
            table.add_column(Text(name))
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)
        return
    lines = [header, *rows] if any(header) else rows
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    aligned = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines]
    emit("\n".join([title, *(f"  {line}" for line in aligned), ""]).encode())


def print_statement(statement: Statement) -> None:
    """Print a statement, with its stages as a table on a terminal."""
    if not sys.stdout.isatty():
        emit(f"{statement}\n".encode())
        return
    text = Text(str(statement))
    text.highlight_regex(r"(?m)^WARNING.*$", "bold red")
    text.highlight_regex(r"True epsilon of the worst window: [^ ]+", "bold")
    text.highlight_words([f"  {stage.name} " for stage in statement.stages], "cyan")
    Console().print(text)


def show_left(epsilon: Fraction) -> str:
    """Return what is left of a budget in its worst window as a short decimal, rounded down.

    >>> from fractions import Fraction
    >>> show_left(Fraction(2, 3)), show_left(Fraction(-1, 2)), show_left(Fraction(0))
    ('0.666666', '-0.5', '0, as planned: every window has a budget of its own')
    """
    shown = f"{math.floor(epsilon * 10**6) / 10**6:.12g}"
    return shown if epsilon else f"{shown}, as planned: every window has a budget of its own"
