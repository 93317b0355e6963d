"""The curator's key is read from where it is safe, and shown nowhere."""

from __future__ import annotations

import io
import logging
import pickle
import traceback
from typing import TYPE_CHECKING

import numpy as np
import pytest

import optstream as ops
from optstream.keys import find_key

if TYPE_CHECKING:
    from pathlib import Path

HEX = "00112233445566778899aabbccddeeff" * 2


def same(one: ops.CuratorKey | None, other: ops.CuratorKey | None) -> bool:
    units = np.zeros((1, 1), dtype=np.int64)
    return one is not None and other is not None and one.digest([b"x"], units) == other.digest([b"x"], units)


def test_a_new_key_is_random_and_its_owners_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        ops.create_key(tmp_path / name)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert not same(ops.read_key(tmp_path / "one"), ops.read_key(tmp_path / "two"))
    assert same(ops.read_key(tmp_path / "one"), ops.read_key(tmp_path / "one"))
    before = (tmp_path / "one").read_bytes()
    with pytest.raises(ops.ParameterError, match="exists, but must not"):
        ops.create_key(tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == before
    with pytest.raises(ops.ParameterError, match="cannot be written: No such file"):
        ops.create_key(tmp_path / "nowhere" / "key")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o777])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    ops.create_key(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ops.ParameterError, match=f"mode {mode:04o}, but must be closed to others: chmod 600"):
        ops.read_key(tmp_path / "key")


@pytest.mark.parametrize("content", ["", HEX[:-1], HEX + "0", "zz" * 32, HEX[:32] + "é" * 16])
def test_a_file_without_a_key_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ops.ParameterError, match="64 hexadecimal digits") as caught:
        ops.read_key(path)
    assert not content or content[:8] not in "".join(traceback.format_exception(caught.value))


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ops.ParameterError, match="cannot be read"):
            ops.read_key(path)
    with pytest.raises(ops.ParameterError, match="not a regular file"):
        ops.read_key("/dev/null")


def test_the_environment_gives_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_key() is None
    ops.create_key(tmp_path / "key")
    monkeypatch.setenv("OPTSTREAM_KEY_FILE", str(tmp_path / "key"))
    assert same(find_key(), ops.read_key(tmp_path / "key"))
    monkeypatch.setenv("OPTSTREAM_KEY", HEX)
    assert same(find_key(), ops.CuratorKey(bytes.fromhex(HEX)))
    monkeypatch.setenv("OPTSTREAM_KEY", HEX[:10])
    with pytest.raises(ops.ParameterError, match="OPTSTREAM_KEY holds 10 characters") as caught:
        find_key()
    assert HEX[:10] not in str(caught.value)
    with pytest.raises(ops.ParameterTypeError, match="key is of type int"):
        find_key(3)  # type: ignore[arg-type]


def test_nothing_shows_the_key(tmp_path: Path) -> None:
    secret = bytes.fromhex(HEX)
    key = ops.CuratorKey(secret)
    log = io.StringIO()
    logging.getLogger().addHandler(handler := logging.StreamHandler(log))
    logging.getLogger().warning("%s %r", key, {"key": key})
    logging.getLogger().removeHandler(handler)
    with ops.Ledger(tmp_path / "ledger.db", key=key, create=True) as ledger:
        shown = f"{key} {key!r} {ledger!r} {vars(ledger)} {dir(key)} {log.getvalue()}"
    for form in (HEX, repr(secret), str(list(secret))):
        assert form not in shown
    with pytest.raises(TypeError):
        pickle.dumps(key)
