"""Settings of the service: what is declared exists, all else is refused with a word on what to do."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from typer.testing import CliRunner

import optstream as ops
from optstream.cli.app import app
from optstream.service.limits import Clients, Gate
from optstream.service.refusals import Refusal
from optstream.service.settings import read_settings

PLAN = Path(__file__).parents[2] / "examples" / "service" / "plan.toml"
TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105
GOOD = f"""
[ledger]
url = "ledger.db"
identity = "{"0" * 32}"
[streams.loads]
plan = "{PLAN}"
step = "30m"
origin = 2026-01-01T00:00:00Z
[streams.trips]
plan = "{PLAN}"
[tokens.meters]
sha256 = "{sha256(TOKEN.encode()).hexdigest()}"
write = ["loads"]
[tokens.all]
sha256 = "{"1" * 64}"
read = ["*"]
"""


def settings(folder: Path, text: str = GOOD) -> Path:
    path = folder / "service.toml"
    path.write_text(text)
    return path


def test_settings_say_what_exists(tmp_path: Path) -> None:
    found = read_settings(settings(tmp_path))
    assert set(found.streams) == {"loads", "trips"}
    assert found.tokens[0].write == {"loads"}
    assert found.tokens[0].read == set()
    assert found.tokens[1].read == {"loads", "trips"}
    assert found.ledger.url == str(tmp_path / "ledger.db")
    assert TOKEN not in repr(found)


def test_a_pool_says_who_is_protected(tmp_path: Path) -> None:
    pool = '[pools.riders]\nepsilon = 1\nw = 48\nentities = "moving"\nentity = "rider"\n[ledger]'
    text = GOOD.replace("[ledger]", pool).replace("[streams.trips]", '[streams.trips]\npool = "riders"')
    wanted = ops.Guarantee(epsilon=1, w=48, entities="moving", entity="rider")
    assert read_settings(settings(tmp_path, text)).pools == {"riders": wanted}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[ledger]", "[ledgers]", "did you mean 'ledger'"),
        ('url = "ledger.db"', "", "no 'url'"),
        ("0" * 32, "0", "32 hexadecimal digits"),
        ("[streams.loads]", "[streams.'lo ads']", "letters, digits"),
        ('step = "30m"\n', "", "'step' and 'origin' together"),
        ('step = "30m"', 'step = "soon"', "like 30m"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00", "time zone"),
        ("plan = ", "plans = ", "did you mean 'plan'"),
        ('write = ["loads"]', 'write = ["load"]', "did you mean 'loads'"),
        ("1" * 64, "1" * 63, "64 hexadecimal digits"),
        ("1" * 64, sha256(TOKEN.encode()).hexdigest(), "one secret twice"),
        ('read = ["*"]', "per_second = 0", "above 0"),
        ('read = ["*"]', "burst = 1.5", "a whole number"),
        ('read = ["*"]', 'file = "x"', "one of 'sha256', 'file' and 'env'"),
        (f'sha256 = "{"1" * 64}"', 'env = "OPTSTREAM_NO_SUCH"', "not set"),
        (f'sha256 = "{"1" * 64}"', 'file = "none"', "cannot be read"),
        ("[streams.trips]", '[streams.trips]\npool = "riders"', "declared pool"),
        ("[ledger]", "[pools.riders]\nepsilon = 1\nw = 48\n[ledger]", "has no member"),
        ("[ledger]", "[pools.riders]\nepsilon = 0\nw = 48\n[ledger]", "pools.riders: epsilon is 0"),
        ("[ledger]", "[pools.riders]\nepsilon = 1\nwindow = 48\n[ledger]", "pools.riders"),
        ("[ledger]", '[pools.riders]\nepsilon = 1\nw = 48\nentities = "still"\n[ledger]', "pools.riders: entities is"),
        ("[ledger]", "[pools.riders]\nepsilon = 1\nw = 48\nentity = 3\n[ledger]", "pools.riders: entity is of type"),
        ("[ledger]", "[limits]\nbody = 1\n[ledger]", "unknown key 'body'"),
        ("[ledger]", "[server]\nport = 70000\n[ledger]", "65535"),
        (GOOD, "= 1", "not TOML"),
    ],
)
def test_a_slip_is_told_and_nothing_is_guessed(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in GOOD
    with pytest.raises((ops.ParameterError, ops.ParameterTypeError), match=words):
        read_settings(settings(tmp_path, GOOD.replace(old, new)))


def test_a_token_from_a_file_is_closed_to_others_and_long_enough(tmp_path: Path) -> None:
    path = settings(tmp_path, GOOD.replace(f'sha256 = "{"1" * 64}"', 'file = "a.token"'))
    token = tmp_path / "a.token"
    token.write_text("short")
    token.chmod(0o600)
    with pytest.raises(ops.ParameterError, match="5 characters") as caught:
        read_settings(path)
    assert "'short'" not in str(caught.value)
    token.unlink()
    made = CliRunner().invoke(app, ["token", "create", str(token)])
    assert read_settings(path).tokens[1].digest.hex() == made.stdout.strip()
    assert CliRunner().invoke(app, ["token", "create", str(token)]).exit_code != 0
    token.chmod(0o644)
    with pytest.raises(ops.ParameterError, match="read by others"):
        read_settings(path)


def test_a_client_is_found_by_its_token_alone(tmp_path: Path) -> None:
    clients = Clients(read_settings(settings(tmp_path)))
    assert clients.find(None) is clients.anonymous
    assert clients.find(f"Bearer {TOKEN}".encode()).name == "meters"
    assert clients.find(f"bearer  {TOKEN}".encode()).name == "meters"
    for wrong in (b"", b"Bearer", f"Basic {TOKEN}".encode(), f"Bearer {TOKEN}x".encode(), TOKEN.encode()):
        with pytest.raises(Refusal):
            clients.find(wrong)


def test_a_gate_fills_steadily_and_counts_what_is_under_way() -> None:
    now = [0.0]
    gate = Gate(per_second=2, burst=3, concurrent=2, clock=lambda: now[0])

    def passes() -> bool:
        try:
            with gate.passing():
                return True
        except Refusal:
            return False

    assert [passes() for _ in range(4)] == [True, True, True, False]
    now[0] += 1
    assert [passes() for _ in range(3)] == [True, True, False]
    now[0] += 100
    with gate.passing(), gate.passing():
        assert not passes()
    assert gate.busy == 0
    assert passes()
