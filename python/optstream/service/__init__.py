"""An HTTP service that takes raw observations of declared streams and gives back private periods.

Raw values come in by one route, which needs a token, and leave by none: they are kept in the ledger until their period
is complete, and appear in no answer, no message, no metric and no log. ``optstream serve --config service.toml`` starts
it; docs/service.md describes it.
"""
