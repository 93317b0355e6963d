"""The privacy auditor: attack a mechanism, and report the largest epsilon that the evidence proves.

    from optstream.audit import audit

    print(audit(mechanism, trials=100_000))

An audit can prove that a promise is broken; it cannot prove that one is kept. See docs/audit.md.
"""

from optstream.audit.auditor import audit
from optstream.audit.pairs import Pair, pairs_of, window_pairs
from optstream.audit.report import Attack, Audit

__all__ = ["Attack", "Audit", "Pair", "audit", "pairs_of", "window_pairs"]
