"""Reports: one page that anyone can read, made of releases and ledgers only, and the same in pieces for notebooks."""

from optstream.report.content import Names
from optstream.report.fragments import ledger_html, release_html, statement_html, tuning_html
from optstream.report.writing import ledger_page, release_page, write_ledger, write_release

__all__ = [
    "Names",
    "ledger_html",
    "ledger_page",
    "release_html",
    "release_page",
    "statement_html",
    "tuning_html",
    "write_ledger",
    "write_release",
]
