"""Rows of a ledger: how they are asked for, written and sealed."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from optstream.errors import ConflictError, LedgerError, ParameterError, UnknownStreamError
from optstream.mechanism.release import Parts
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optstream.ledger.database import Transaction

__all__ = [
    "CHARGE",
    "CHARGED",
    "POLICY",
    "RECHARGE",
    "STORE",
    "Charge",
    "check_fits",
    "policy_of",
    "policy_row",
    "seal",
    "stored",
]

POLICY = "SELECT epsilon, w, alpha, neighbours FROM optstream_streams WHERE name = ? "
CHARGED = (
    "SELECT c.period, c.number, c.plan, c.data, c.charged, c.void, c.seal, r.released FROM optstream_charges c"
    " LEFT JOIN optstream_releases r ON r.stream = c.stream AND r.period = c.period"
    " WHERE c.stream = ? AND c.period BETWEEN ? AND ? ORDER BY c.period"
)
CHARGE = (
    "INSERT INTO optstream_charges (stream, period, number, plan, data, charged, void, seal)"
    " SELECT ?, ?, ?, ?, ?, ?, ?, ? FROM optstream_streams"
    " WHERE name = ? AND epsilon = ? AND neighbours = ? ON CONFLICT DO NOTHING"
)
RECHARGE = (
    "UPDATE optstream_charges SET number = ?, plan = ?, data = ?, charged = ?, void = ?, seal = ?"
    " WHERE stream = ? AND number = ?"
)
STORE = (
    "INSERT INTO optstream_releases (stream, period, number, result, released, seal) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT DO NOTHING"
)
STORED = (
    "SELECT period, number, result, released, seal FROM optstream_releases"
    " WHERE stream = ? AND period BETWEEN ? AND ? ORDER BY period"
)


class Charge(NamedTuple):
    """A row of charges, and whether its period is released."""

    period: int
    number: int
    plan: bytes
    data: bytes
    charged: str
    void: str | None
    seal: bytes = b""
    released: bool = False

    @classmethod
    def of(cls, row: Sequence[Any]) -> Charge:
        """Return what a database gave for ``CHARGED``."""
        period, number, made, data, charged, void, sealed, released = row
        return cls(period, number, bytes(made), bytes(data), charged, void, bytes(sealed), released is not None)

    @classmethod
    def read(cls, stream: str, row: Sequence[Any]) -> Charge:
        """Return a row whose seal is right: a row that was altered must not make room in the budget."""
        charge = cls.of(row)
        if not charge.sealed(stream):
            raise LedgerError(f"the charge of period {charge.period} of {stream!r} was altered")
        return charge

    def row(self, stream: str) -> tuple[Any, ...]:
        """Return the values for ``CHARGE``."""
        return stream, *self[:6], self._own_seal(stream)

    def sealed(self, stream: str) -> bool:
        """Whether the row is as it was written."""
        return self.seal == self._own_seal(stream)

    def _own_seal(self, stream: str) -> bytes:
        return seal(stream, self.period, self.number, self.plan, self.data, self.charged, self.void)

    def check_unreleased(self, stream: str, made: bytes) -> None:
        """Raise if something has left for this charge, which another one was to replace."""
        if self.released:
            what = "with another plan" if self.plan != made else "from other data"
            raise ConflictError(
                f"period {self.period} of {stream!r} was released {what}; what is stored stays as it is"
            )

    def check_void(self, stream: str) -> None:
        """Raise if the period will not be released."""
        if self.void:
            raise ConflictError(f"period {self.period} of {stream!r} is void and will not be released: {self.void}")


def seal(*fields: str | int | bytes | None) -> bytes:
    """Return a checksum of fields, of which no two lists look the same."""
    return sha256(repr(fields).encode()).digest()


def policy_row(policy: Guarantee) -> tuple[str, int, str, str]:
    """Return a policy as it is written.

    Raises:
        ParameterError: The policy has a delta, which a ledger cannot write down.
    """
    if policy.delta:
        raise ParameterError(
            f"delta is {float(policy.delta):g}, but must be 0 in a ledger, whose policies are of pure epsilon"
        )
    return str(policy.epsilon), policy.w, repr(policy.alpha), policy.neighbours


def policy_of(stream: str, rows: Sequence[tuple[Any, ...]]) -> Guarantee:
    """Return the policy that a database gave for ``POLICY``."""
    if not rows:
        raise UnknownStreamError(f"stream {stream!r} is not in the ledger, but must be")
    ((epsilon, w, alpha, neighbours),) = rows
    return Guarantee(epsilon=Fraction(epsilon), w=w, alpha=float(alpha), neighbours=neighbours)


def check_fits(stream: str, policy: Guarantee, w: int, alpha: float) -> None:
    """Raise if a mechanism is not for the window and the alpha of a policy."""
    if (policy.w, policy.alpha) != (w, alpha):
        raise ParameterError(
            f"mechanism has w = {w} and alpha = {alpha:g}, but the policy of {stream!r} has w = {policy.w} and "
            f"alpha = {policy.alpha:g}"
        )


def stored(reading: Transaction, stream: str, first: int, last: int) -> dict[int, Parts]:
    """Return the releases of periods that are stored.

    Raises:
        LedgerError: One of them is not as it was written.
    """
    parts = {}
    for period, number, result, released, sealed in reading.rows(STORED, (stream, first, last)):
        if bytes(sealed) != seal(stream, period, number, bytes(result), released):
            raise LedgerError(f"the release of period {period} of {stream!r} was altered")
        parts[period] = Parts.from_bytes(bytes(result))
    return parts
