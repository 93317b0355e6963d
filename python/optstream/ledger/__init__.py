"""The ledger: nothing released twice, nothing overspent, nothing lost."""

from optstream.ledger.book import Ledger
from optstream.ledger.records import Entry, Remaining, Verification, Window

__all__ = ["Entry", "Ledger", "Remaining", "Verification", "Window"]
