"""The settings of a service: a TOML file in which every stream, token and limit is declared.

What is not declared does not exist: a name with a typing error is refused, and never becomes a stream with a fresh
budget. Paths are relative to the file. Secrets stand in files or in the environment, or as digests.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optstream.errors import ParameterError, ParameterTypeError
from optstream.mechanism.plan import read_plan
from optstream.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optstream.mechanism.mechanism import Mechanism

__all__ = ["Account", "Declared", "Limits", "Settings", "TokenSettings", "read_settings"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LENGTH = re.compile(r"([1-9]\d{0,5})(s|m|h|d)")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
SHORTEST_TOKEN = 32
"""Characters of a token: so many that its digest cannot be searched."""
EVERY = "*"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client, or all of them together, may ask of the service."""

    body_bytes: int = 1_048_576
    """The longest body; a longer one is refused before it is read."""
    header_bytes: int = 16_384
    """The longest request line and headers."""
    observations: int = 10_000
    """The most observations in one request."""
    connections: int = 256
    """Open connections; more are told to come back."""
    waiting: int = 64
    """Requests that may wait for one stream."""
    header_seconds: float = 5.0
    """The time for request line and headers, from the first moment of a connection."""
    body_seconds: float = 10.0
    """The time for the body."""
    answer_seconds: float = 30.0
    """The time in which a request is answered; what it has begun goes on."""
    send_seconds: float = 10.0
    """The time in which a client must take a piece of an answer."""
    idle_seconds: float = 15.0
    """The time after which a connection without requests is closed."""
    anonymous_per_second: float = 20.0
    """Requests of all clients without a token together."""
    anonymous_burst: int = 40
    """Requests of clients without a token that may come at once."""
    anonymous_concurrent: int = 8
    """Requests of clients without a token that are worked on at a time."""
    penalty_seconds: float = 1.0
    """How long a refusal for too many requests waits, so that a client in a loop slows itself down."""
    events: int = 64
    """Clients that may follow streams at a time."""


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """A client: the digest of what it must know, and what it may do."""

    name: str
    digest: bytes = field(repr=False)
    write: frozenset[str]
    read: frozenset[str]
    metrics: bool = False
    per_second: float = 50.0
    burst: int = 100
    concurrent: int = 16


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A stream that exists: how it is released, its clock, and what becomes of observations that do not fit."""

    name: str
    mechanism: Mechanism = field(repr=False)
    step: timedelta | None = None
    origin: datetime | None = None
    public: bool = False
    pool: str | None = None
    emit: str = "period"
    late: str = "stored"
    duplicate: str = "keep"
    disorder: str = "accept"
    missing: str | float = "refuse"
    absent: str | float = "refuse"


@dataclass(frozen=True, kw_only=True)
class Account:
    """The ledger that is meant, and none other."""

    url: str = field(repr=False)
    identity: str
    witness: str | None = field(default=None, repr=False)
    key_file: Path | None = None
    timeout: float = 10.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that a service is started with."""

    ledger: Account
    streams: Mapping[str, Declared]
    tokens: tuple[TokenSettings, ...] = field(repr=False)
    pools: Mapping[str, Guarantee] = field(default_factory=dict)
    """What all declared members of each pool are held to together."""
    limits: Limits = field(default_factory=Limits)
    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_seconds: float = 10.0
    check_seconds: float = 2.0
    open_metrics: bool = False


def read_settings(path: str | Path) -> Settings:
    """Return the settings in a TOML file.

    Raises:
        ParameterError: The file cannot be read, or a key is missing, unknown or out of its bound.
    """
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(f"settings {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ParameterError(f"settings {path} are not TOML, but must be: {error}") from None
    _check_keys("settings", content, {"ledger", "streams", "tokens"}, {"server", "limits", "pools"})
    folder = path.resolve().parent
    pools = {name: _pool(f"pools.{name}", given) for name, given in _table("pools", content.get("pools", {})).items()}
    streams = {name: _stream(folder, name, given) for name, given in _table("streams", content["streams"]).items()}
    if not streams:
        raise ParameterError("settings declare no stream, but must declare at least one")
    for declared in streams.values():
        if declared.pool is not None and declared.pool not in pools:
            raise ParameterError(f"streams.{declared.name}.pool is {declared.pool!r}, but must be a declared pool")
    for name in pools:
        _check_name(f"pools.{name}", name)
        if all(declared.pool != name for declared in streams.values()):
            raise ParameterError(
                f"pools.{name} has no member, but must have at least one: streams.NAME.pool = {name!r}"
            )
    tokens = tuple(_token(folder, name, given, streams) for name, given in _table("tokens", content["tokens"]).items())
    if len({token.digest for token in tokens}) < len(tokens):
        raise ParameterError("tokens hold one secret twice, but every client must have its own")
    return Settings(
        ledger=_account(folder, _table("ledger", content["ledger"])),
        streams=streams,
        tokens=tokens,
        pools=pools,
        limits=Limits(**_numbers("limits", _table("limits", content.get("limits", {})), Limits)),
        **_server(_table("server", content.get("server", {}))),
    )


def _server(given: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"port", "shutdown_seconds", "check_seconds"}
    _check_keys("server", given, set(), {"host", "open_metrics", *numbers})
    found = _numbers("server", {key: value for key, value in given.items() if key in numbers}, Settings)
    if found.get("port", 1) > 65535:  # noqa: PLR2004
        raise ParameterError(f"server.port is {found['port']}, but must be from 1 to 65535")
    if "host" in given:
        found["host"] = _text("server.host", given["host"])
    if "open_metrics" in given:
        found["open_metrics"] = _flag("server.open_metrics", given["open_metrics"])
    return found


def _account(folder: Path, given: Mapping[str, Any]) -> Account:
    _check_keys("ledger", given, {"identity"}, {"url", "url_env", "witness", "witness_env", "key_file", "timeout"})
    identity = _text("ledger.identity", given["identity"])
    if not re.fullmatch(r"[0-9a-f]{32}", identity):
        raise ParameterError(
            "ledger.identity must be the 32 hexadecimal digits that `optstream ledger init` has printed"
        )
    url = _place(folder, "url", given)
    if url is None:
        raise ParameterError("ledger has no 'url' and no 'url_env', but must have one of them")
    key = given.get("key_file")
    return Account(
        url=url,
        identity=identity,
        witness=_place(folder, "witness", given),
        key_file=None if key is None else folder / _text("ledger.key_file", key),
        **_numbers("ledger", {name: given[name] for name in ("timeout",) if name in given}, Account),
    )


def _place(folder: Path, name: str, given: Mapping[str, Any]) -> str | None:
    """Return a path or URL, which the environment may hold because it may hold a password."""
    if f"{name}_env" in given:
        if name in given:
            raise ParameterError(f"ledger has {name!r} and '{name}_env', but must have one of them")
        place = _variable(f"ledger.{name}_env", given[f"{name}_env"])
    elif name in given:
        place = _text(f"ledger.{name}", given[name])
    else:
        return None
    return place if "://" in place else str(folder / place)


def _stream(folder: Path, name: str, given: Any) -> Declared:
    where = f"streams.{name}"
    rules = {"late", "duplicate", "disorder", "missing", "absent"}
    _check_keys(where, _table(where, given), {"plan"}, {"step", "origin", "public", "pool", "emit", *rules})
    _check_name(where, name)
    if ("step" in given) != ("origin" in given):
        raise ParameterError(f"{where} must have 'step' and 'origin' together, or neither for step numbers")
    mechanism = read_plan(folder / _text(f"{where}.plan", given["plan"]))
    return Declared(
        name=name,
        mechanism=mechanism,
        step=_length(f"{where}.step", given["step"]) if "step" in given else None,
        origin=_moment(f"{where}.origin", given["origin"]) if "origin" in given else None,
        public=_flag(f"{where}.public", given.get("public", False)),
        pool=None if "pool" not in given else _text(f"{where}.pool", given["pool"]),
        # What they may be is known, and checked, by Stream. Steps that leave at once leave in their order.
        emit=_text(f"{where}.emit", given.get("emit", "period")),
        disorder=given.get("disorder", "refuse" if given.get("emit") == "step" else "accept"),
        **{rule: given[rule] for rule in rules - {"disorder"} if rule in given},
    )


def _pool(where: str, given: Any) -> Guarantee:
    _check_keys(where, _table(where, given), {"epsilon", "w"}, {"delta", "neighbours", "entities", "entity"})
    try:
        return Guarantee(**given)
    except (ParameterError, ParameterTypeError) as error:
        raise type(error)(f"{where}: {error}") from None


def _token(folder: Path, name: str, given: Any, streams: Mapping[str, Declared]) -> TokenSettings:
    where = f"tokens.{name}"
    numbers = {"per_second", "burst", "concurrent"}
    _check_keys(where, _table(where, given), set(), {"sha256", "file", "env", "write", "read", "metrics", *numbers})
    _check_name(where, name)
    if sum(source in given for source in ("sha256", "file", "env")) != 1:
        raise ParameterError(f"{where} must have one of 'sha256', 'file' and 'env'")
    return TokenSettings(
        name=name,
        digest=_digest(folder, where, given),
        write=_names(f"{where}.write", given.get("write", []), streams),
        read=_names(f"{where}.read", given.get("read", []), streams),
        metrics=_flag(f"{where}.metrics", given.get("metrics", False)),
        **_numbers(where, {key: value for key, value in given.items() if key in numbers}, TokenSettings),
    )


def _digest(folder: Path, where: str, given: Mapping[str, Any]) -> bytes:
    """Return the digest of a token; neither the token nor a part of it is kept or shown."""
    if "sha256" in given:
        digits = _text(f"{where}.sha256", given["sha256"])
        if not re.fullmatch(r"[0-9a-f]{64}", digits):
            raise ParameterError(f"{where}.sha256 must be 64 hexadecimal digits")
        return bytes.fromhex(digits)
    if "env" in given:
        token = _variable(f"{where}.env", given["env"])
    else:
        file = folder / _text(f"{where}.file", given["file"])
        try:
            mode = file.stat().st_mode
            token = file.read_text(encoding="ascii").strip()
        except OSError as error:
            raise ParameterError(f"{where}.file {file} cannot be read: {error.strerror}") from None
        except ValueError:
            raise ParameterError(f"{where}.file {file} must hold a token of ASCII characters") from None
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise ParameterError(f"{where}.file {file} can be read by others, but must not: chmod 600 {file}")
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ParameterError(
            f"{where} has a token of {len(token)} characters, but it must have at least {SHORTEST_TOKEN}, of ASCII and "
            "without blanks: `optstream token create FILE` makes one"
        )
    return sha256(token.encode()).digest()


def _names(where: str, given: Any, streams: Mapping[str, Declared]) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ParameterTypeError(f"{where} must be an array of names of streams, or of '*'")
    for name in given:
        if name != EVERY and name not in streams:
            near = get_close_matches(name, streams, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"{where} names {name!r}, which is no declared stream{hint}")
    return frozenset(streams) if EVERY in given else frozenset(given)


def _length(where: str, given: Any) -> timedelta:
    found = LENGTH.fullmatch(_text(where, given))
    if found is None:
        raise ParameterError(f"{where} is {given!r}, but must be like 30m, of s, m, h and d")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def _moment(where: str, given: Any) -> datetime:
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise ParameterError(f"{where} must be a time like 2026-01-01T00:00:00Z") from None
    if moment.tzinfo is None:
        raise ParameterError(f"{where} has no time zone, but must have one, such as Z")
    return moment


def _numbers(where: str, given: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return numbers that a dataclass has as fields, each positive and of the type of its default."""
    defaults = {one.name: one.default for one in fields(kind) if isinstance(one.default, (int, float))}
    _check_keys(where, given, set(), set(defaults))
    found: dict[str, Any] = {}
    for key, value in given.items():
        whole = isinstance(defaults[key], int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ParameterTypeError(f"{where}.{key} must be {'a whole number' if whole else 'a number'}")
        if not 0 < value <= 10**9:
            raise ParameterError(f"{where}.{key} is {value}, but must be above 0 and at most 10^9")
        found[key] = value if whole else float(value)
    return found


def _check_keys(where: str, given: Mapping[str, Any], needed: set[str], optional: set[str]) -> None:
    known = sorted(needed | optional)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f", but must have of {', '.join(known)}"
            raise ParameterError(f"{where} has an unknown key {key!r}{hint}")
    for key in sorted(needed - set(given)):
        raise ParameterError(f"{where} has no {key!r}, but must have it")


def _check_name(where: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ParameterError(f"{where} must be named by 1 to 100 letters, digits, dots, hyphens and underscores")


def _table(where: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ParameterTypeError(f"{where} is of type {type(given).__name__}, but must be a table")
    return given


def _text(where: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ParameterTypeError(f"{where} must be a text that is not empty")
    return given


def _flag(where: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ParameterTypeError(f"{where} must be true or false")
    return given


def _variable(where: str, given: Any) -> str:
    name = _text(where, given)
    if not os.environ.get(name):
        raise ParameterError(f"{where} names the environment variable {name}, which is not set")
    return os.environ[name]
