"""The service: real processes, a real PostgreSQL server, requests over HTTP.

Every value that is sent is the sentinel, and every answer and every log is searched for it.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import numpy as np
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

import optstream as ops

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
PLAN = ROOT / "examples" / "service" / "plan.toml"
SKIP = 77
PATIENCE = 120.0
W = 48
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)
RAW = 7654.32109876
SENTINEL = "7654.32109"
TOKENS = {name: f"a-token-for-tests-only-{name}-0123456789" for name in ("writer", "reader", "limited", "other")}
AS = {name: {"Authorization": f"Bearer {token}"} for name, token in TOKENS.items()}
TREE_PLAN = """
epsilon = 1
w = 4
alpha = 1
bounds = [0, 20_000]
sample = { kind = "equal", k = 4 }
hierarchy = { nation = { north = ["n1", "n2"], south = ["s1", "s2"] } }
"""
STREAMS = [f"stream-{number}" for number in range(110)]
UNUSED = iter(STREAMS)


def digest(name: str) -> str:
    return sha256(TOKENS[name].encode()).hexdigest()


def settings_text(url: str, identity: str, *, more: str = "", streams: Sequence[str] = STREAMS) -> str:
    declared = "".join(
        f"""
        [streams.{name}]
        plan = {json.dumps(str(PLAN))}
        step = "30m"
        origin = {ORIGIN.isoformat()}
        """
        for name in streams
    )
    return f"""
        [server]
        shutdown_seconds = 3
        [ledger]
        url = {json.dumps(url)}
        identity = "{identity}"
        {declared}
        [streams.shown]
        plan = {json.dumps(str(PLAN))}
        public = true
        [tokens.writer]
        sha256 = "{digest("writer")}"
        write = ["*"]
        per_second = 5000
        burst = 5000
        concurrent = 100
        [tokens.reader]
        sha256 = "{digest("reader")}"
        read = ["*"]
        metrics = true
        per_second = 5000
        burst = 5000
        [tokens.limited]
        sha256 = "{digest("limited")}"
        write = ["shown"]
        read = ["shown"]
        per_second = 1
        burst = 5
        [limits]
        body_bytes = 2_000_000
        observations = 20_000
        header_seconds = 1
        body_seconds = 1
        {more}
        """


class Server:
    """A process of the service, whose answers and log never hold a raw value."""

    def __init__(self, config: Path, environment: dict[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.log = log
        command = [sys.executable, "-m", "optstream", "serve", "--config", str(config), "--port", str(self.port)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        # No proxy of the environment may stand between.
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False)

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                assert self.get("/readyz").status_code == 200
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return
        pytest.fail(f"the service did not start:\n{self.log.read_text()}")

    def get(self, path: str, who: str | None = "reader") -> httpx.Response:
        return searched(self.client.get(path, headers={} if who is None else AS[who]))

    def send(self, stream: str, **request: Any) -> httpx.Response:
        headers = request.pop("headers", AS["writer"])
        return searched(self.client.post(f"/streams/{stream}/observations", headers=headers, **request))

    def push(self, stream: str, observations: Sequence[Any]) -> httpx.Response:
        return self.send(stream, json={"observations": observations})

    @contextmanager
    def connected(self) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as raw:
            yield raw

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        text = self.log.read_text()
        assert SENTINEL not in text
        assert not [token for token in TOKENS.values() if token in text]
        for line in text.splitlines():
            assert {"time", "level", "logger", "message"} <= set(json.loads(line))


def searched(response: httpx.Response) -> httpx.Response:
    assert SENTINEL not in response.text
    assert SENTINEL not in str(response.headers)
    return response


def day(number: int, steps: Sequence[int] = range(W)) -> list[dict[str, Any]]:
    first = ORIGIN + number * timedelta(days=1)
    return [{"when": (first + step * timedelta(minutes=30)).isoformat(), "value": RAW} for step in steps]


def in_batches(observations: list[Any], size: int) -> list[list[Any]]:
    return [observations[first : first + size] for first in range(0, len(observations), size)]


def fresh() -> str:
    """Return the name of a declared stream that no test has used."""
    return next(UNUSED)


def error_of(response: httpx.Response) -> tuple[int, str]:
    (content,) = response.json().values()
    assert set(content) == {"type", "message", "request_id"}
    assert content["request_id"] == response.headers["x-request-id"]
    assert content["message"]
    return response.status_code, content["type"]


@pytest.fixture(scope="module")
def postgres() -> str:
    if url := os.environ.get("OPTSTREAM_TEST_POSTGRES"):
        return url
    started = subprocess.run([ROOT / "tools" / "postgres", "start"], check=False, capture_output=True, text=True)
    # In continuous integration the script never asks to be skipped.
    if started.returncode == SKIP:
        pytest.skip(f"no PostgreSQL server: {started.stderr}")
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


@contextmanager
def database(server: str) -> Iterator[str]:
    """Make a database of our own, and take it away again."""
    name = f"optstream_service_{uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


@pytest.fixture(scope="module")
def ledger(postgres: str) -> Iterator[str]:
    with database(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    ops.create_key(path)
    return path


@pytest.fixture(scope="module")
def environment(key: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPTSTREAM")}
    return inherited | {"OPTSTREAM_KEY_FILE": str(key)}


@pytest.fixture(scope="module")
def config(ledger: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with ops.Ledger(ledger, create=True) as made:
        identity = made.identity
    path = tmp_path_factory.mktemp("settings") / "service.toml"
    path.write_text(settings_text(ledger, identity))
    return path


@contextmanager
def serving(config: Path, environment: dict[str, str], folder: Path, count: int = 1) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            servers.append(Server(config, environment, folder / f"{uuid4().hex}.log"))
            stack.callback(servers[-1].stop)
        for server in servers:
            server.wait()
        yield servers


@pytest.fixture(scope="module")
def servers(
    config: Path, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Server]]:
    with serving(config, environment, tmp_path_factory.mktemp("servers"), count=2) as started:
        yield started


@pytest.fixture(scope="module")
def server(servers: list[Server]) -> Server:
    return servers[0]


@pytest.fixture(scope="module")
def book(ledger: str, key: Path) -> Iterator[ops.Ledger]:
    with ops.Ledger(ledger, key=key, create=True) as opened:
        yield opened


def test_a_day_is_released_when_it_is_complete_and_read_back(server: Server) -> None:
    stream = fresh()
    response = server.push(stream, day(0, range(W - 1)))
    assert (response.status_code, response.json()) == (200, {"released": []})
    assert server.get(f"/streams/{stream}/periods/0").status_code == 404
    assert server.get(f"/streams/{stream}/periods").json() == {"periods": [], "next": None}

    (period,) = server.push(stream, day(0, [W - 1])).json()["released"]
    assert (period["period"], datetime.fromisoformat(period["start"])) == (0, ORIGIN)
    assert period["epsilon"] == {"exact": "1", "decimal": 1.0}
    assert len(period["values"]) == W
    assert [server.get(f"/streams/{stream}/periods/0").json()] == [period]


def test_periods_of_a_range_are_read_back(server: Server) -> None:
    stream = fresh()
    released = server.push(stream, [*day(0), *day(1), *day(2)]).json()["released"]
    assert [period["period"] for period in released] == [0, 1, 2]
    path = f"/streams/{stream}/periods"
    assert server.get(path).json() == {"periods": released, "next": None}
    assert server.get(f"{path}?first=1&limit=1").json() == {"periods": released[1:2], "next": 2}
    assert server.get(f"{path}?limit=1").json() == {"periods": released[2:], "next": None}
    assert server.get(f"{path}?first=3").json()["periods"] == []


def test_a_long_range_is_read_page_by_page(server: Server) -> None:
    stream, days = fresh(), 230
    server.push(stream, [observation for number in range(days) for observation in day(number)])
    pages, first = [], 0
    while first is not None:
        pages.append(server.get(f"/streams/{stream}/periods?first={first}&limit=100").json())
        first = pages[-1]["next"]
    assert [period["period"] for page in pages for period in page["periods"]] == list(range(days))
    assert len(pages) == 3


def test_the_budget_is_exact_and_the_statement_in_words(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    policy = ops.Guarantee(epsilon=ops.read_plan(PLAN).guarantee.epsilon * 4 / 3, w=W, alpha=10.0)
    book.set_policy(stream, policy)
    full, part = {"exact": "4/3", "decimal": 4 / 3}, {"exact": "1/3", "decimal": 1 / 3}
    time.sleep(0.6)
    before = server.get(f"/streams/{stream}/budget").json()
    who = {"delta": {"exact": "0", "decimal": 0.0}, "entities": "settled", "entity": "entity"}
    assert before["policy"] == {"epsilon": full, "w": W, "alpha": 10.0, "neighbours": "sliding", **who}
    assert (before["least"], before["last"], before["windows"]) == (full, None, None)

    server.push(stream, day(0))
    after = server.get(f"/streams/{stream}/budget?first=0&last=3").json()
    assert after["least"] == part
    assert after["last"] == {"period": 0, "left": part}
    assert after["windows"] == {"first": 0, "last": 3, "spent": {"exact": "1", "decimal": 1.0}, "left": part}
    assert "Protects one entity's contribution" in server.get(f"/streams/{stream}/statement").json()["words"]


def test_a_retry_gets_the_stored_release_from_any_process(servers: list[Server]) -> None:
    stream = fresh()
    answers = [server.push(stream, day(0)) for server in servers * 2]
    answers += [server.push(stream, day(0, [5])) for server in servers]
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.json() == answers[0].json() for answer in answers)


def test_clients_that_race_on_two_processes_get_one_release(servers: list[Server], book: ops.Ledger) -> None:
    stream = fresh()
    sizes = (48, 24, 16, 12, 8, 6)

    def deliver(client: int) -> list[httpx.Response]:
        batches = in_batches(day(0), sizes[client % len(sizes)])
        return [servers[(client + turn) % 2].push(stream, batch) for turn, batch in enumerate(batches)]

    with ThreadPoolExecutor(12) as pool:
        answers = [answer for some in pool.map(deliver, range(12)) for answer in some]
    assert {answer.status_code for answer in answers} == {200}
    released = [period for answer in answers for period in answer.json()["released"]]
    assert released
    assert all(period == released[0] for period in released)
    time.sleep(0.6)
    assert [server.get(f"/streams/{stream}/periods").json()["periods"] for server in servers] == [released[:1]] * 2
    assert [entry.period for entry in book.history(stream)] == [0]


def test_clients_that_race_with_different_values_get_one_release_and_lose_nothing(
    servers: list[Server], book: ops.Ledger
) -> None:
    last = day(0, [W - 1])
    rivals = [last, [last[0] | {"value": 10_000 + RAW}]]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            stream = fresh()
            servers[0].push(stream, day(0, range(W - 1)))
            servers[1].push(stream, day(0, [0]))
            answers = list(pool.map(lambda turn: servers[turn].push(stream, rivals[turn]), range(2)))  # noqa: B023
            # One of them may be told of a conflict, but what was taken before is still there for the next attempt.
            assert {answer.status_code for answer in answers} <= {200, 409}
            retried = servers[0].push(stream, last).json()["released"]
            assert servers[1].push(stream, last).json()["released"] == retried
            assert [period["period"] for period in retried] == [0]
            assert [(entry.period, entry.released is not None) for entry in book.history(stream)] == [(0, True)]


def test_a_client_may_change_between_processes_at_any_point(servers: list[Server]) -> None:
    stream = fresh()
    turns = cycle([servers[0], servers[1], servers[1]])
    batches = [batch for number in range(4) for batch in in_batches(day(number), 7)]
    answers = [server.push(stream, batch) for server, batch in zip(turns, batches, strict=False)]
    assert [answer.status_code for answer in answers] == [200] * len(batches)
    released = [period["period"] for answer in answers for period in answer.json()["released"]]
    assert released == [0, 1, 2, 3]


def test_the_open_period_survives_a_process_that_is_killed(
    config: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    stream, days = fresh(), 4
    waiting = [[observation] for number in range(days) for observation in day(number)]
    released: dict[int, Any] = {}
    with serving(config, environment, tmp_path) as (victim,), ThreadPoolExecutor(1) as pool:
        with suppress(httpx.TransportError):
            while waiting:
                if len(waiting) == days * W - W // 2:
                    pool.submit(victim.kill)
                released |= {period["period"]: period for period in victim.push(stream, waiting[0]).json()["released"]}
                # What was acknowledged is not sent again.
                waiting.pop(0)
        assert waiting, "the process was not killed in time"
    last = waiting[-1]
    with serving(config, environment, tmp_path) as (successor,):
        for batch in waiting:
            answer = successor.push(stream, batch)
            assert answer.status_code == 200
            released |= {period["period"]: period for period in answer.json()["released"]}
        assert list(released) == list(range(days))
        assert successor.push(stream, last).json()["released"] == [released[days - 1]]
        stored = successor.get(f"/streams/{stream}/periods").json()["periods"]
        assert stored == list(released.values())


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
def test_a_retry_after_a_kill_during_a_release_gets_the_one_release(
    delay: float, config: Path, environment: dict[str, str], server: Server, book: ops.Ledger, tmp_path: Path
) -> None:
    stream = fresh()
    first = None
    with serving(config, environment, tmp_path) as (victim,), ThreadPoolExecutor(1) as pool:
        pending = pool.submit(victim.push, stream, day(0))
        time.sleep(delay)
        victim.kill()
        # If the answer is lost, the release perhaps is not.
        with suppress(httpx.TransportError):
            first = pending.result().json()
    answers = [server.push(stream, day(0)) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json() == (first or answers[0].json())
    assert [(entry.period, entry.released is not None) for entry in book.history(stream)] == [(0, True)]


HALF_HOUR = {"when": "2026-01-01T00:30:00Z", "value": RAW}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (422, "RequestError")),
        (f'"{RAW}"'.encode(), (422, "RequestError")),
        (b'{"observations": [{"when": "2026-01-01T00:00:00Z", "value": NaN}]}', (422, "RequestError")),
        (b'{"observations": [{"when": "2026-01-01T00:00:00Z", "value": 1e999}]}', (422, "RequestError")),
        ({"observations": []}, (422, "RequestError")),
        ({"observations": RAW}, (422, "RequestError")),
        ({"observations": [RAW]}, (422, "RequestError")),
        ({"observations": [{"value": RAW}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"value": f"{RAW}"}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"value": {f"{RAW}": f"{RAW}"}}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"value": [RAW]}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"value": True}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"when": f"at {RAW}"}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"when": 10**30}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR | {"when": 3}]}, (422, "ParameterTypeError")),
        ({"observations": [HALF_HOUR | {"when": "2026-01-01T00:30:00"}]}, (422, "ParameterError")),
        ({"observations": [HALF_HOUR | {"value": {"north": RAW}}]}, (422, "ParameterTypeError")),
        ({"observations": [HALF_HOUR | {"when": "2026-01-01T00:10:00Z"}]}, (409, "StreamError")),
        ({"observations": [HALF_HOUR | {"when": "2025-01-01T00:00:00Z"}]}, (409, "StreamError")),
        ({"observations": [HALF_HOUR, *day(1)]}, (409, "StreamError")),
        ({"observations": [HALF_HOUR | {f"{RAW}": 1}]}, (422, "RequestError")),
        ({"observations": [HALF_HOUR], f"{RAW}": 1}, (422, "RequestError")),
        (b"[" * 100_000, (422, "RequestError")),
        ("{}".encode("utf-16"), (422, "RequestError")),
    ],
)
def test_wrong_observations_are_refused_and_not_shown(body: Any, expected: tuple[int, str], server: Server) -> None:
    stream = fresh()
    response = server.send(stream, content=body) if isinstance(body, bytes) else server.send(stream, json=body)
    assert error_of(response) == expected
    # Nothing of it was taken.
    assert len(server.push(stream, day(0)).json()["released"]) == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nowhere", 404),
        ("/streams/none/periods", 404),
        ("/streams/none/periods/0", 404),
        ("/streams/none/budget", 404),
        ("/streams/none/statement", 404),
        ("/streams/shown/periods/-1", 422),
        ("/streams/shown/periods/99999999999999999999", 422),
        ("/streams/shown/periods?first=x", 422),
        ("/streams/%00/periods", 422),
        ("/streams/none/observations", 405),
        ("/streams/shown/periods?limit=101", 422),
        ("/streams/shown/budget?first=0&last=100", 422),
        ("/streams/shown/periods/0", 404),
    ],
)
def test_what_is_not_there_is_an_error_of_the_same_form(path: str, status: int, server: Server) -> None:
    assert error_of(server.get(path))[0] == status


def test_what_the_policy_does_not_allow_is_forbidden(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    book.set_policy(stream, ops.Guarantee(epsilon=0.5, w=W, alpha=10.0))
    time.sleep(0.6)
    assert error_of(server.push(stream, day(0))) == (403, "BudgetError")
    assert server.get(f"/streams/{stream}/budget").json()["least"] == {"exact": "1/2", "decimal": 0.5}
    assert book.history(stream) == ()


def test_a_period_that_was_released_from_other_data_is_a_conflict(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    server.push(stream, day(0, range(W - 1)))
    stored = book.release(ops.read_plan(PLAN), np.full(W, 1.0), stream=stream)
    assert error_of(server.push(stream, day(0, [W - 1]))) == (409, "ConflictError")
    assert server.get(f"/streams/{stream}/periods/0").json()["values"] == stored.values.tolist()


def made_ledger(place: str, **options: Any) -> str:
    with ops.Ledger(place, create=True, **options) as made:
        return made.identity


def test_a_ledger_that_does_not_answer_is_a_reason_to_come_back_later(
    environment: dict[str, str], postgres: str, tmp_path: Path
) -> None:
    config = tmp_path / "service.toml"
    with ExitStack() as stack:
        with database(postgres) as url:
            config.write_text(settings_text(url, made_ledger(url), streams=["a", "b"]))
            (server,) = stack.enter_context(serving(config, environment, tmp_path))
            assert server.push("a", day(0, [0])).status_code == 200
        time.sleep(0.6)
        answers = [server.get("/streams/a/periods/0"), server.push("a", day(0, [1])), server.push("b", day(0))]
        assert [error_of(answer) for answer in answers] == [(503, "LedgerError")] * 3
        assert all(answer.headers["Retry-After"] for answer in answers)
        answers.append(eventually(lambda: server.get("/readyz", None), lambda answer: answer.status_code == 503))
        assert answers[-1].json()["status"] == "LedgerError"
        assert server.get("/livez", None).status_code == 200
        assert "optstream_ready 0.0" in server.get("/metrics").text
        # Where the ledger is stays with the operator.
        assert not any(urlsplit(url).path[1:] in answer.text for answer in answers)


def eventually(ask: Any, good: Any) -> Any:
    end = time.monotonic() + 30
    while not good(answer := ask()) and time.monotonic() < end:
        time.sleep(0.1)
    assert good(answer), answer
    return answer


def test_a_ledger_that_forgets_under_its_witness_is_not_ready(environment: dict[str, str], tmp_path: Path) -> None:
    place, witness = tmp_path / "ledger.db", tmp_path / "witness.db"
    identity = made_ledger(str(place), witness=witness)
    config = tmp_path / "service.toml"
    text = settings_text(str(place), identity, streams=["a"])
    config.write_text(text.replace("[streams.a]", f'witness = "{witness}"\n[streams.a]', 1))
    with serving(config, environment, tmp_path) as (server,):
        assert server.get("/readyz", None).json() | {"age_seconds": 0} == {
            "status": "ok",
            "ledger": identity,
            "witness": True,
            "age_seconds": 0,
        }
        assert server.push("a", day(0)).json()["released"]
        with ops.Ledger(place) as forgetful, forgetful._database.transaction() as change:
            change.write("DELETE FROM optstream_entries WHERE kind = 'release'", ())
        unwell = eventually(lambda: server.get("/readyz", None), lambda answer: answer.status_code == 503)
        assert unwell.json()["status"] == "LedgerError"
    # And no process starts on it.
    assert "witness" in refused_start(config, environment)


@pytest.mark.parametrize(
    "header",
    [None, "", TOKENS["writer"], "Bearer", f"Basic {TOKENS['writer']}", f"Bearer {TOKENS['writer']}x", "Bearer \xe9"],
)
def test_nobody_writes_without_the_token(header: str | None, server: Server) -> None:
    stream = fresh()
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for body in (b'{"observations": [{"when": "2026-01-01T00:00:00Z", "value": 1}]}', b"{"):
        response = server.send(stream, headers=headers, content=body)
        assert error_of(response) == (401, "Unauthorized")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert server.get(f"/streams/{stream}/periods").json()["periods"] == []


def test_a_name_that_is_not_declared_is_refused_and_never_made(server: Server, book: ops.Ledger) -> None:
    before = book.streams
    for name in ("strem-0", "Stream-0", "none"):
        assert error_of(server.push(name, day(0))) == (404, "NotFound")
        assert error_of(server.get(f"/streams/{name}/budget")) == (404, "NotFound")
    assert book.streams == before


def test_a_token_does_what_it_may_and_no_more(server: Server) -> None:
    stream = fresh()
    assert error_of(server.get(f"/streams/{stream}/budget", "writer")) == (403, "Forbidden")
    assert error_of(server.send(stream, headers=AS["reader"], json={"observations": day(0)})) == (403, "Forbidden")
    assert error_of(server.get("/metrics", "writer")) == (403, "Forbidden")
    assert error_of(server.get("/metrics", None)) == (401, "Unauthorized")
    assert error_of(server.get(f"/streams/{stream}/budget", None)) == (401, "Unauthorized")
    # Who may not read a stream does not learn that it exists.
    assert error_of(server.get(f"/streams/{stream}/budget", "limited")) == (404, "NotFound")
    assert error_of(server.get(f"/streams/{stream}/budget", "other")) == (401, "Unauthorized")
    assert server.get("/streams/shown/budget", None).status_code == 200
    assert [one["name"] for one in server.get("/overview", None).json()["streams"]] == ["shown"]


def test_a_token_has_its_own_limit_and_others_do_not_notice(server: Server) -> None:
    time.sleep(5)
    answers = [server.get("/streams/shown/budget", "limited") for _ in range(8)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    assert (429, "TooManyRequests") in [error_of(answer) for answer in answers[5:] if answer.status_code != 200]
    assert server.get("/streams/shown/budget").status_code == 200


def request_of(stream: str, *headers: str, path: str = "observations") -> bytes:
    lines = [
        f"POST /streams/{stream}/{path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {TOKENS['writer']}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def answered(raw: socket.socket) -> tuple[int, str]:
    """Return the status and type of a refusal on a connection that is then closed."""
    content = b""
    while piece := raw.recv(65536):
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["type"]


def test_a_long_body_is_shed_before_it_is_read(server: Server) -> None:
    stream = fresh()
    memory = resident(server)
    with server.connected() as raw:
        begun = time.monotonic()
        raw.sendall(request_of(stream, "Content-Length: 97000000") + b"[" * 1000)
        assert answered(raw) == (413, "BodyTooLarge")
        assert time.monotonic() - begun < 5
    with server.connected() as raw:
        raw.sendall(request_of(stream, "Transfer-Encoding: chunked"))
        with suppress(OSError):
            for _ in range(97):
                raw.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
        with suppress(ConnectionResetError):
            assert answered(raw) == (413, "BodyTooLarge")
    assert error_of(server.send(stream, content=b" " * 2_000_001)) == (413, "BodyTooLarge")
    assert resident(server) - memory < 30_000_000
    assert server.push(stream, day(0)).status_code == 200


def resident(server: Server) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_slow_and_half_sent_requests_are_shed(server: Server) -> None:
    stream = fresh()
    with server.connected() as silent, server.connected() as headers, server.connected() as body:
        headers.sendall(request_of(stream)[:-2])
        body.sendall(request_of(stream, "Content-Length: 1000", "Content-Type: application/json") + b'{"observations":')
        begun = time.monotonic()
        assert answered(headers) == (408, "Timeout")
        assert answered(body) == (408, "Timeout")
        assert silent.recv(10) == b""
        assert time.monotonic() - begun < 8
    # Also on a connection that was good before.
    with server.connected() as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        raw.recv(65536)
        raw.sendall(b"GET /livez HT")
        assert answered(raw) == (408, "Timeout")
    shed = server.get("/metrics").text
    assert 'optstream_shed_total{reason="slow"}' in shed
    assert 'optstream_shed_total{reason="idle"}' in shed


def test_long_headers_and_what_is_not_http_are_refused(server: Server) -> None:
    with server.connected() as raw:
        with suppress(OSError):
            raw.sendall(request_of("shown", "X: " + "x" * 100_000))
        with suppress(ConnectionResetError):
            assert answered(raw) == (431, "HeadersTooLarge")
    with server.connected() as raw:
        raw.sendall(b"\x16\x03\x01 \r\n\r\n")
        assert answered(raw) == (400, "BadRequest")
    for headers in ({"Content-Type": "text/csv"}, {"Content-Encoding": "gzip"}):
        refused = server.send(fresh(), headers=AS["writer"] | headers, content=b"{}")
        assert error_of(refused) == (415, "UnsupportedMediaType")


def test_anonymous_clients_in_a_loop_do_not_stall_a_push(server: Server) -> None:
    stream = fresh()
    server.push(stream, day(0, [0]))

    def pushed(step: int) -> float:
        begun = time.monotonic()
        assert server.push(stream, day(0, [step])).status_code == 200
        return time.monotonic() - begun

    quiet = sorted(pushed(step) for step in range(1, 12))[5]
    end = time.monotonic() + 5

    def flood(_: int) -> set[int]:
        seen = set()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=PATIENCE, trust_env=False) as client:
            while time.monotonic() < end:
                seen.add(client.get("/streams/shown/periods?limit=100").status_code)
        return seen

    with ThreadPoolExecutor(40) as pool:
        floods = [pool.submit(flood, number) for number in range(40)]
        time.sleep(1)
        loud = sorted(pushed(step) for step in range(12, 23))[5]
        assert set().union(*(one.result() for one in floods)) <= {200, 429}
    assert loud < 5 * quiet + 0.2
    assert server.get("/readyz", None).status_code == 200


def test_fuzzed_bodies_are_refused_in_the_form_of_all_refusals(server: Server) -> None:
    stream, draw = fresh(), random.Random(20)
    good = json.dumps({"observations": day(0, range(3))}).encode()
    for _ in range(300):
        body = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        start = draw.randrange(len(body))
        cut = body if draw.random() < 0.7 else body[start : start + draw.randrange(len(body))]
        answer = server.send(stream, content=bytes(cut))
        if answer.status_code != 200:
            status, kind = error_of(answer)
            assert (status, kind) in {
                (422, "RequestError"), (422, "ParameterError"), (422, "ParameterTypeError"), (409, "StreamError"),
            }  # fmt: skip
    assert server.get("/readyz", None).status_code == 200


def test_openapi_names_the_security_scheme_and_every_refusal(server: Server) -> None:
    content = server.get("/openapi.json").json()
    assert content["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    push = content["paths"]["/streams/{name}/observations"]["post"]
    assert push["security"] == [{"bearer": []}]
    assert set(push["responses"]) == {
        "200", "400", "401", "403", "404", "408", "409", "413", "415", "422", "429", "431", "500", "503",
    }  # fmt: skip
    for path, operations in content["paths"].items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status != "200" and (path, status) != ("/readyz", "503"):
                    schema = answer["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}, (path, status)
    assert "when" in json.dumps(push["requestBody"])


def test_what_is_answered_has_the_form_that_openapi_says(server: Server) -> None:
    from optstream.service import models  # noqa: PLC0415  (needs the extra)

    stream = fresh()
    models.Released.model_validate(server.push(stream, day(0)).json())
    models.Periods.model_validate(server.get(f"/streams/{stream}/periods").json())
    models.Budget.model_validate(server.get(f"/streams/{stream}/budget?first=0").json())
    models.Overview.model_validate(server.get("/overview").json())
    models.StatementContent.model_validate(server.get(f"/streams/{stream}/statement").json())
    models.Health.model_validate(server.get("/readyz").json())


def test_metrics_count_and_hold_nothing_private(server: Server) -> None:
    stream = fresh()
    server.push(stream, [*day(0), *day(1, range(5))])
    text = eventually(
        lambda: server.get("/metrics").text, lambda text: f'left_epsilon{{stream="{stream}"}} 0.0' in text
    )
    for line in (
        f'optstream_policy_epsilon{{stream="{stream}"}} 1.0',
        f'optstream_open_steps{{stream="{stream}"}} 5.0',
        f'optstream_observations_total{{stream="{stream}"}} 53.0',
        f'optstream_releases_total{{stream="{stream}"}} 1.0',
        "optstream_ready 1.0",
    ):
        assert line in text
    assert f'optstream_lag_seconds{{stream="{stream}"}}' in text
    assert 'optstream_request_seconds_bucket{le="0.5",route="/streams/{name}/observations"}' in text
    server.push("undeclared-name", day(0))
    assert 'type="NotFound"' in server.get("/metrics").text
    assert "undeclared-name" not in server.get("/metrics").text


def test_logs_are_json_with_the_id_of_the_request(server: Server) -> None:
    given = uuid4().hex
    answer = server.client.get("/streams/shown/budget", headers=AS["reader"] | {"X-Request-ID": given})
    assert answer.headers["x-request-id"] == given
    hostile = server.client.get("/streams/shown/budget", headers=AS["reader"] | {"X-Request-ID": "a b"})
    assert hostile.headers["x-request-id"] != "a b"
    lines = eventually(
        lambda: [json.loads(line) for line in server.log.read_text().splitlines() if given in line], bool
    )
    assert [(line["route"], line["status"], line["token"]) for line in lines] == [
        ("/streams/{name}/budget", 200, "reader")
    ]


def test_periods_are_followed_as_they_come(servers: list[Server]) -> None:
    stream = fresh()
    servers[0].push(stream, day(0))

    def follow(server: Server, headers: dict[str, str], query: str = "") -> list[tuple[str, Any]]:
        seen: list[tuple[str, Any]] = []
        with server.client.stream("GET", f"/streams/{stream}/events{query}", headers=AS["reader"] | headers) as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            number = ""
            for line in events.iter_lines():
                if line.startswith("id: "):
                    number = line[4:]
                elif line.startswith("data: "):
                    seen.append((number, json.loads(line[6:])))
                if len(seen) == 2:
                    break
        return seen

    with ThreadPoolExecutor(3) as pool:
        # One follows the process that is written to, one the other, one goes on after a lost connection.
        every = [
            pool.submit(follow, servers[0], {}, "?after=-1"),
            pool.submit(follow, servers[1], {"Last-Event-ID": "0"}),
        ]
        for number in (1, 2):
            time.sleep(0.5)
            servers[0].push(stream, day(number))
        first, second = (one.result(PATIENCE) for one in every)
    assert [number for number, _ in first] == ["0", "1"]
    assert [number for number, _ in second] == ["1", "2"]
    assert first[1] == second[0]


def test_it_stops_in_time_while_clients_stall(config: Path, environment: dict[str, str], tmp_path: Path) -> None:
    stream = fresh()
    with serving(config, environment, tmp_path) as (server,), ExitStack() as stack:
        for start in (b"", request_of(stream)[:-2], request_of(stream, "Content-Length: 1000") + b"{"):
            raw = stack.enter_context(server.connected())
            raw.sendall(start)
        follower = stack.enter_context(server.connected())
        follower.sendall(
            f"GET /streams/{stream}/events HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {TOKENS['reader']}\r\n\r\n".encode()
        )
        assert b"200" in follower.recv(4096)
        assert server.push(stream, day(0, [0])).status_code == 200
        begun = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert time.monotonic() - begun < 3 + 2 + 1


def refused_start(config: Path, environment: dict[str, str]) -> str:
    command = [sys.executable, "-m", "optstream", "serve", "--config", str(config), "--port", "1"]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode in {2, 3, 6}, ended.stderr
    assert not [token for token in TOKENS.values() if token in ended.stderr]
    return ended.stderr


def test_a_service_on_another_ledger_does_not_start(environment: dict[str, str], tmp_path: Path) -> None:
    made_ledger(str(tmp_path / "ledger.db"))
    config = tmp_path / "service.toml"
    config.write_text(settings_text(str(tmp_path / "ledger.db"), "0" * 32, streams=["a"]))
    assert "another ledger" in refused_start(config, environment)
    config.write_text(settings_text(str(tmp_path / "none.db"), "0" * 32, streams=["a"]))
    assert "does not exist" in refused_start(config, environment)


def test_a_hierarchy_is_served_from_an_sqlite_file(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(TREE_PLAN)
    config = tmp_path / "service.toml"
    text = settings_text("ledger.db", made_ledger(str(tmp_path / "ledger.db")), streams=[])
    config.write_text(text.replace("[streams.shown]", '[streams.tree]\nplan = "plan.toml"\n[streams.shown]'))
    leaves = {"n1": RAW, "n2": RAW, "s1": RAW, "s2": 0}
    with serving(config, environment, tmp_path, count=2) as servers:
        incomplete = {name: value for name, value in leaves.items() if name != "s2"}
        refused = servers[0].push("tree", [{"when": 0, "value": incomplete}])
        assert error_of(refused) == (422, "DataError")
        for step in range(3):
            assert servers[0].push("tree", [{"when": step, "value": leaves}]).json() == {"released": []}
        answers = [server.push("tree", [{"when": 3, "value": leaves}]).json()["released"] for server in servers]
        ((period,), again) = answers
        assert again == [period]
        time.sleep(0.6)
        assert servers[1].get("/streams/tree/periods").json()["periods"] == [period]
    assert period["start"] == 0
    values = {name: np.array(steps) for name, steps in period["values"].items()}
    assert list(values) == ["nation", "north", "south", "n1", "n2", "s1", "s2"]
    assert (values["nation"] == values["n1"] + values["n2"] + values["s1"] + values["s2"]).all()
    assert all(
        low < high for low, high in zip(period["band"]["lower"]["n1"], period["band"]["upper"]["n1"], strict=True)
    )


POOLED = """
    [pools.riders]
    epsilon = 1
    w = 4
    entities = "moving"
    entity = "rider"
    [streams.trips]
    plan = "small.toml"
    pool = "riders"
    [streams.fares]
    plan = "small.toml"
    pool = "riders"
    """


def test_declared_members_of_a_pool_share_its_budget(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "small.toml").write_text(
        "epsilon = 0.6\nw = 4\nalpha = 1\nbounds = [0, 20_000]\nsample = { kind = 'equal', k = 4 }\n"
        "entities = 'moving'\nentity = 'rider'\n"
    )
    with ops.Ledger(tmp_path / "ledger.db", create=True) as made:
        identity = made.identity
    config = tmp_path / "service.toml"
    text = settings_text("ledger.db", identity, streams=["alone"])
    config.write_text(POOLED + text)
    with serving(config, environment, tmp_path) as (server,):
        steps = [{"when": step, "value": RAW} for step in range(8)]
        assert len(server.push("trips", steps).json()["released"]) == 2
        assert error_of(server.push("fares", steps[:4])) == (403, "BudgetError")
        budget = server.get("/streams/trips/budget").json()
        assert budget["pool"] == {
            "name": "riders",
            "epsilon": {"exact": "1", "decimal": 1.0},
            "delta": {"exact": "0", "decimal": 0.0},
            "w": 4,
            "left": {"exact": "2/5", "decimal": 0.4},
        }
        assert server.get("/streams/alone/budget").json()["pool"] is None
        wanted = 'optstream_pool_left_epsilon{pool="riders",stream="trips"} 0.4'
        # Gauges are set when the service looks at the ledger, every few seconds.
        end = time.monotonic() + PATIENCE
        while wanted not in server.get("/metrics").text:
            assert time.monotonic() < end
            time.sleep(0.1)
    with ops.Ledger(tmp_path / "ledger.db") as kept:
        assert set(kept.pool("riders").members) == {"trips", "fares"}
        assert kept.history("fares") == ()
        assert kept.verify().problems == ()
    # A restart finds the pool as it is; settings that promise something else are refused.
    with serving(config, environment, tmp_path) as (server,):
        assert server.get("/streams/fares/budget").json()["pool"]["left"]["exact"] == "2/5"
    config.write_text(config.read_text().replace("epsilon = 1\n", "epsilon = 2\n", 1))
    command = [sys.executable, "-m", "optstream", "serve", "--config", str(config), "--check"]
    refused = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "pools.riders" in refused.stderr


STEPPED = """
    [streams.live]
    plan = "live.toml"
    step = "30m"
    origin = 2026-01-01T00:00:00Z
    emit = "step"
    [streams.city]
    plan = "city.toml"
    emit = "step"
    """


def test_each_observation_is_answered_with_its_private_value(tmp_path: Path, environment: dict[str, str]) -> None:
    small = "epsilon = 1\nw = 4\nalpha = 1\nbounds = [0, 20_000]\n"
    (tmp_path / "live.toml").write_text(small + "sample = { kind = 'equal', k = 4 }\nperturb = { kind = 'cube' }\n")
    (tmp_path / "city.toml").write_text(
        small + "sample = { kind = 'bucket', k = 2 }\nhierarchy = { city = ['n', 's'] }\n"
    )
    with ops.Ledger(tmp_path / "ledger.db", create=True) as made:
        identity = made.identity
    config = tmp_path / "service.toml"
    config.write_text(STEPPED + settings_text("ledger.db", identity, streams=["alone"]))
    with serving(config, environment, tmp_path) as (server,):
        left = [server.push("live", [one]).json()["released"] for one in day(0, range(6))]
        assert [[step["step"] for step in released] for released in left] == [[number] for number in range(6)]
        steps = [released[0] for released in left]
        assert steps[5]["time"] == "2026-01-01T02:30:00Z".replace("Z", "+00:00")
        assert all(step["band"]["lower"] <= step["value"] <= step["band"]["upper"] for step in steps)
        # A retry gets what has left, one by one, in a batch and after a restart.
        assert server.push("live", day(0, range(6))).json()["released"] == steps
        assert server.get("/streams/live/steps").json() == {"steps": steps, "next": None}
        assert server.get("/streams/live/steps?first=1&limit=2").json() == {"steps": steps[1:3], "next": 3}
        assert [one["period"] for one in server.get("/streams/live/periods").json()["periods"]] == [0]
        assert server.get("/streams/live/budget").json()["last"] == {
            "period": 1,
            "left": {"exact": "0", "decimal": 0.0},
        }
        assert error_of(server.push("live", day(0, [9])))[1] == "StreamError"
        city = server.push("city", [{"when": step, "value": {"n": RAW, "s": RAW}} for step in range(3)]).json()[
            "released"
        ]
        assert all(one["value"]["city"] == one["value"]["n"] + one["value"]["s"] for one in city)
        with server.client.stream("GET", "/streams/live/events?after=3", headers=AS["reader"]) as events:
            lines = events.iter_lines()
            seen = [json.loads(line[6:]) for line in (next(lines) for _ in range(9)) if line.startswith("data: ")]
        assert seen == steps[4:]
        shown = {stream["name"]: stream for stream in server.get("/overview").json()["streams"]}
        assert shown["live"]["last"]["values"] == [step["value"] for step in steps[2:]]
        assert set(shown["city"]["last"]["values"]) == {"city", "n", "s"}
    with serving(config, environment, tmp_path) as (server,):
        assert server.push("live", day(0, range(4, 8))).json()["released"][:2] == steps[4:]
        assert server.get("/streams/live/steps?first=0&limit=6").json()["steps"] == steps
    with ops.Ledger(tmp_path / "ledger.db") as kept:
        assert kept.verify().problems == ()


def test_the_walk_through_of_the_document_runs(environment: dict[str, str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "service.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    own = {name: value for name, value in environment.items() if name != "OPTSTREAM_KEY_FILE"}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"

    def run(script: str) -> str:
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=tmp_path, env=own, check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    run(blocks[0])
    with serving(tmp_path / "service.toml", own, tmp_path) as (server,):
        assert '"period":0' in run(blocks[1].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}"))


def test_the_settings_of_the_example_are_those_that_the_service_reads(tmp_path: Path) -> None:
    from optstream.service.settings import read_settings  # noqa: PLC0415  (needs the extra)

    for name in ("service.toml", "plan.toml"):
        (tmp_path / name).write_text((PLAN.parent / name).read_text())
    for name in ("meters", "readers"):
        token = tmp_path / f"{name}.token"
        token.write_text(TOKENS["writer" if name == "meters" else "reader"])
        token.chmod(0o600)
    settings = read_settings(tmp_path / "service.toml")
    assert list(settings.streams) == ["auvergne"]
    assert [token.name for token in settings.tokens] == ["meters", "readers"]
