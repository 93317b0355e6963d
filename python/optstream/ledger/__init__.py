"""The ledger: nothing released twice, nothing overspent, nothing lost."""

from optstream.ledger.book import Ledger
from optstream.ledger.records import Entry, Head, Pool, Remaining, Verification, Window
from optstream.ledger.restore import restore_ledger

__all__ = ["Entry", "Head", "Ledger", "Pool", "Remaining", "Verification", "Window", "restore_ledger"]
