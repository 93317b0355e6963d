"""What an entry of a ledger's log may follow, and what is true after it."""

from __future__ import annotations

from itertools import product

import pytest

import optstream as ops
from optstream.ledger.entries import LogEntry, State, followed

NUMBER, OTHER, NEXT = 3, 2, 5
CHARGED = State(7, NUMBER, b"plan", b"data", "then", key=b"key")
STATES = {
    "nothing": None,
    "charged": CHARGED,
    "final": CHARGED._replace(final=True),
    "void": CHARGED._replace(void="because", ended=4),
    "void without a charge": State(7, 0, b"", b"", "then", void="because", ended=4),
    "released": CHARGED._replace(release=4, released="then"),
    "final and released": CHARGED._replace(final=True, release=4, released="then"),
}
OPEN = ("charged", "final")


def entry(kind: str, charge: int, plan: bytes = b"plan", data: bytes = b"data") -> LogEntry:
    return LogEntry(NEXT, kind, 7, charge, plan, data, b"why", "now", b"", b"", b"")


def may_follow(before: str, kind: str, charge: int, *, same: bool) -> bool:
    meant = before in OPEN and charge == NUMBER
    new = before == "nothing" and charge == 0
    return {
        "charge": new or (meant and (before != "final" or same)),
        "final": new or (meant and (before != "final" or same)),
        "void": new or meant,
        "step": meant and before == "final",
        "release": meant,
    }[kind]


@pytest.mark.parametrize("before", STATES)
def test_nothing_follows_what_is_at_an_end(before: str) -> None:
    for kind, charge, (plan, data) in product(
        ("charge", "final", "void", "step", "release"),
        (0, OTHER, NUMBER),
        ((b"plan", b"data"), (b"other", b"data"), (b"plan", b"other")),
    ):
        one, same = entry(kind, charge, plan, data), (plan, data) == (b"plan", b"data")
        if not may_follow(before, kind, charge, same=same):
            with pytest.raises(ops.LedgerError, match="entry 5 of 'a' cannot follow"):
                followed("a", STATES[before], one, b"new key")
            continue
        after = followed("a", STATES[before], one, b"new key")
        if kind in {"charge", "final"}:
            expected = State(7, NEXT, plan, data, "now", final=kind == "final", key=b"new key")
        elif before == "nothing":
            expected = State(7, 0, b"", b"", "now", void="why", ended=NEXT)
        else:
            state = STATES[before]
            assert state is not None
            expected = {
                "void": state._replace(void="why", ended=NEXT),
                "release": state._replace(release=NEXT, released="now"),
                "step": state,
            }[kind]
        assert after == expected
