"""Rows of a ledger: how they are asked for, written and sealed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from optstream.errors import ConflictError, LedgerError
from optstream.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHARGE", "CHARGED", "POLICY", "RECHARGE", "STORE", "STORED", "Charge", "policy_of", "policy_row", "seal"]

POLICY = "SELECT epsilon, w, alpha, neighbours FROM optstream_streams WHERE name = ? "
CHARGED = (
    "SELECT c.period, c.plan, c.data, c.charged, c.void, c.seal, r.data FROM optstream_charges c"
    " LEFT JOIN optstream_releases r ON r.stream = c.stream AND r.period = c.period"
    " WHERE c.stream = ? AND c.period BETWEEN ? AND ? ORDER BY c.period"
)
CHARGE = "INSERT INTO optstream_charges VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
RECHARGE = (
    "UPDATE optstream_charges SET plan = ?, data = ?, charged = ?, void = ?, seal = ? WHERE stream = ? AND period = ?"
)
STORE = (
    "INSERT INTO optstream_releases SELECT ?, ?, ?, ?, ?, ? FROM optstream_charges"
    " WHERE stream = ? AND period = ? AND plan = ? AND data = ? AND void IS NULL {lock} ON CONFLICT DO NOTHING"
)
STORED = (
    "SELECT period, data, result, released, seal FROM optstream_releases"
    " WHERE stream = ? AND period BETWEEN ? AND ? ORDER BY period"
)


@dataclass(frozen=True)
class Charge:
    """A row of charges, and whether its period is released."""

    period: int
    plan: bytes
    data: bytes
    charged: str
    void: str | None
    seal: bytes = b""
    released: bool = False

    @classmethod
    def of(cls, row: Sequence[Any]) -> Charge:
        """Return what a database gave for ``CHARGED``."""
        period, made, data, charged, void, sealed, released = row
        return cls(period, bytes(made), bytes(data), charged, void, bytes(sealed), released is not None)

    @classmethod
    def read(cls, stream: str, row: Sequence[Any]) -> Charge:
        """Return a row whose seal is right: a row that was altered must not make room in the budget."""
        charge = cls.of(row)
        if not charge.sealed(stream):
            raise LedgerError(f"the charge of period {charge.period} of {stream!r} was altered")
        return charge

    def row(self, stream: str) -> tuple[Any, ...]:
        """Return the values for ``CHARGE``."""
        return stream, self.period, self.plan, self.data, self.charged, self.void, self._own_seal(stream)

    def sealed(self, stream: str) -> bool:
        """Whether the row is as it was written."""
        return self.seal == self._own_seal(stream)

    def _own_seal(self, stream: str) -> bytes:
        return seal(stream, self.period, self.plan, self.data, self.charged, self.void or "")

    def differs(self, other: Charge) -> bool:
        """Whether another charge is for another plan or other data."""
        return (self.plan, self.data) != (other.plan, other.data)

    def check_replaceable(self, stream: str, other: Charge) -> None:
        """Raise if something has left for this charge."""
        if self.released:
            what = "with another plan" if self.plan != other.plan else "from other data"
            raise ConflictError(
                f"period {self.period} of {stream!r} was released {what}; what is stored stays as it is"
            )
        self.check_void(stream)

    def check_void(self, stream: str) -> None:
        """Raise if the period will not be released."""
        if self.void:
            raise LedgerError(f"period {self.period} of {stream!r} is void and will not be released: {self.void}")


def seal(*fields: str | int | bytes) -> bytes:
    """Return a checksum of fields, each preceded by its length."""
    result = sha256()
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode()
        result.update(len(content).to_bytes(8, "little") + content)
    return result.digest()


def policy_row(policy: Guarantee) -> tuple[str, int, str, str]:
    """Return a policy as it is written."""
    return str(policy.epsilon), policy.w, repr(policy.alpha), policy.neighbours


def policy_of(stream: str, rows: Sequence[tuple[Any, ...]]) -> Guarantee:
    """Return the policy that a database gave for ``POLICY``."""
    if not rows:
        raise LedgerError(f"stream {stream!r} is not in the ledger, but must be")
    ((epsilon, w, alpha, neighbours),) = rows
    return Guarantee(epsilon=Fraction(epsilon), w=w, alpha=float(alpha), neighbours=neighbours)
