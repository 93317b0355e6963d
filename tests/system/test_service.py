"""The example service: real processes, a real PostgreSQL server, requests over HTTP.

Every value that is sent is the sentinel, and every answer and every log is searched for it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
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
SERVICE = ROOT / "examples" / "service"
SKIP = 77
PATIENCE = 120.0
W = 48
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)
RAW = 7654.32109876
SENTINEL = "7654.32109"
TOKEN = "a-token-for-tests-only"  # noqa: S105
TREE_PLAN = """
epsilon = 1
w = 4
alpha = 1
bounds = [0, 20_000]
sample = { kind = "equal", k = 4 }
hierarchy = { nation = { north = ["n1", "n2"], south = ["s1", "s2"] } }
"""


class Server:
    """A process of the service, whose answers and log never hold a raw value."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str], log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.log = log
        arguments = [str(part).format(port=self.port) for part in command]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                arguments, env=environment | {"PORT": str(self.port)}, stdout=output, stderr=output
            )
        # No proxy of the environment may stand between.
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE, trust_env=False)

    def wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            try:
                assert self.get("/health").status_code == 200
            except httpx.TransportError:
                time.sleep(0.05)
            else:
                return
        pytest.fail(f"the service did not start:\n{self.log.read_text()}")

    def get(self, path: str) -> httpx.Response:
        return searched(self.client.get(path))

    def send(self, stream: str, **request: Any) -> httpx.Response:
        headers = request.pop("headers", {"Authorization": f"Bearer {TOKEN}"})
        return searched(self.client.post(f"/streams/{stream}/observations", headers=headers, **request))

    def push(self, stream: str, observations: Sequence[Any]) -> httpx.Response:
        return self.send(stream, json={"observations": observations})

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
        assert TOKEN not in text


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
    return f"service-{uuid4().hex}"


def error_of(response: httpx.Response) -> tuple[int, str]:
    (content,) = response.json().values()
    assert set(content) == {"type", "message"}
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
def settings(ledger: str, key: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OPTSTREAM")}
    ops.Ledger(ledger, create=True).close()
    return inherited | {
        "OPTSTREAM_LEDGER": ledger,
        "OPTSTREAM_KEY_FILE": str(key),
        "OPTSTREAM_TOKEN": TOKEN,
        "OPTSTREAM_STEP": "30m",
        "OPTSTREAM_ORIGIN": ORIGIN.isoformat(),
    }


COMMAND = (sys.executable, "-m", "uvicorn", "--app-dir", SERVICE, "--port", "{port}", "app:app")


@contextmanager
def serving(
    settings: dict[str, str], folder: Path, count: int = 1, command: Sequence[str | Path] = COMMAND
) -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            servers.append(Server(command, settings, folder / f"{uuid4().hex}.log"))
            stack.callback(servers[-1].stop)
        for server in servers:
            server.wait()
        yield servers


@pytest.fixture(scope="module")
def servers(settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    with serving(settings, tmp_path_factory.mktemp("servers"), count=2) as started:
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
    assert server.get(f"{path}?first=1&last=1").json()["periods"] == released[1:2]
    assert server.get(f"{path}?first=3").json()["periods"] == []


def test_a_long_range_is_read_page_by_page(server: Server) -> None:
    stream, days = fresh(), 370
    server.push(stream, [observation for number in range(days) for observation in day(number)])
    page = server.get(f"/streams/{stream}/periods").json()
    rest = server.get(f"/streams/{stream}/periods?first={page['next']}").json()
    assert [period["period"] for period in page["periods"] + rest["periods"]] == list(range(days))
    assert rest["next"] is None


def test_the_budget_is_exact_and_the_statement_in_words(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    policy = ops.Guarantee(epsilon=ops.read_plan(SERVICE / "plan.toml").guarantee.epsilon * 4 / 3, w=W, alpha=10.0)
    book.set_policy(stream, policy)
    full, part = {"exact": "4/3", "decimal": 4 / 3}, {"exact": "1/3", "decimal": 1 / 3}
    before = server.get(f"/streams/{stream}/budget").json()
    assert before["policy"] == {"epsilon": full, "w": W, "alpha": 10.0, "neighbours": "sliding"}
    assert (before["least"], before["windows"]) == (full, [])

    server.push(stream, day(0))
    after = server.get(f"/streams/{stream}/budget").json()
    assert after["least"] == part
    assert {"first": 0, "last": 0, "left": part} in after["windows"]
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


def test_the_open_period_survives_a_process_that_is_killed(settings: dict[str, str], tmp_path: Path) -> None:
    stream, days = fresh(), 4
    waiting = [[observation] for number in range(days) for observation in day(number)]
    released: dict[int, Any] = {}
    with serving(settings, tmp_path) as (victim,), ThreadPoolExecutor(1) as pool:
        with suppress(httpx.TransportError):
            while waiting:
                if len(waiting) == days * W - W // 2:
                    pool.submit(victim.kill)
                released |= {period["period"]: period for period in victim.push(stream, waiting[0]).json()["released"]}
                # What was acknowledged is not sent again.
                waiting.pop(0)
        assert waiting, "the process was not killed in time"
    last = waiting[-1]
    with serving(settings, tmp_path) as (successor,):
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
    delay: float, settings: dict[str, str], server: Server, book: ops.Ledger, tmp_path: Path
) -> None:
    stream = fresh()
    first = None
    with serving(settings, tmp_path) as (victim,), ThreadPoolExecutor(1) as pool:
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
        ("/streams/none/periods/-1", 422),
        ("/streams/none/periods/99999999999999999999", 422),
        ("/streams/none/periods?first=x", 422),
        ("/streams/%00/periods", 422),
        ("/streams/none/observations", 405),
    ],
)
def test_what_is_not_there_is_an_error_of_the_same_form(path: str, status: int, server: Server) -> None:
    assert error_of(server.get(path))[0] == status


def test_what_the_policy_does_not_allow_is_forbidden(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    book.set_policy(stream, ops.Guarantee(epsilon=0.5, w=W, alpha=10.0))
    assert error_of(server.push(stream, day(0))) == (403, "BudgetError")
    assert server.get(f"/streams/{stream}/budget").json()["least"] == {"exact": "1/2", "decimal": 0.5}
    assert book.history(stream) == ()


def test_a_period_that_was_released_from_other_data_is_a_conflict(server: Server, book: ops.Ledger) -> None:
    stream = fresh()
    server.push(stream, day(0, range(W - 1)))
    stored = book.release(ops.read_plan(SERVICE / "plan.toml"), np.full(W, 1.0), stream=stream)
    assert error_of(server.push(stream, day(0, [W - 1]))) == (409, "ConflictError")
    assert server.get(f"/streams/{stream}/periods/0").json()["values"] == stored.values.tolist()


def test_a_ledger_that_does_not_answer_is_a_reason_to_come_back_later(
    settings: dict[str, str], postgres: str, tmp_path: Path
) -> None:
    stream = fresh()
    with ExitStack() as stack:
        with database(postgres) as url:
            ops.Ledger(url, create=True).close()
            (server,) = stack.enter_context(serving(settings | {"OPTSTREAM_LEDGER": url}, tmp_path))
            assert server.push(stream, day(0, [0])).status_code == 200
        answers = [
            server.get("/health"),
            server.get(f"/streams/{stream}/periods/0"),
            server.push(stream, day(0, [1])),
            server.push(fresh(), day(0)),
        ]
        assert [error_of(answer) for answer in answers] == [(503, "LedgerError")] * 4
        assert all(answer.headers["Retry-After"] for answer in answers)
        # Where the ledger is stays with the operator.
        assert not any(urlsplit(url).path[1:] in answer.text for answer in answers)


@pytest.mark.parametrize("header", [None, "", TOKEN, "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"])
def test_nobody_writes_without_the_token(header: str | None, server: Server) -> None:
    stream = fresh()
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for body in (b'{"observations": [{"when": "2026-01-01T00:00:00Z", "value": 1}]}', b"{"):
        response = server.send(stream, headers=headers, content=body)
        assert error_of(response) == (401, "Unauthorized")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert server.get(f"/streams/{stream}/budget").status_code == 404


@pytest.mark.parametrize(
    "change",
    [{"OPTSTREAM_TOKEN": ""}, {"OPTSTREAM_TOKEN": "short"}, {"OPTSTREAM_LEDGER": ""}, {"OPTSTREAM_STEP": "soon"}],
    ids=str,
)
def test_a_service_with_wrong_settings_does_not_start(change: dict[str, str], settings: dict[str, str]) -> None:
    command = [str(part).format(port=0) for part in COMMAND]
    ended = subprocess.run(
        command, env=settings | change, check=False, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode != 0
    assert next(iter(change)) in ended.stderr
    assert TOKEN not in ended.stderr


def test_a_hierarchy_is_served_from_an_sqlite_file(settings: dict[str, str], tmp_path: Path) -> None:
    stream, plan = fresh(), tmp_path / "plan.toml"
    plan.write_text(TREE_PLAN)
    places = {"OPTSTREAM_PLAN": str(plan), "OPTSTREAM_LEDGER": str(tmp_path / "ledger.db")}
    ops.Ledger(tmp_path / "ledger.db", create=True).close()
    numbers = {name: value for name, value in settings.items() if name not in {"OPTSTREAM_STEP", "OPTSTREAM_ORIGIN"}}
    leaves = {"n1": RAW, "n2": RAW, "s1": RAW, "s2": 0}
    with serving(numbers | places, tmp_path, count=2) as servers:
        incomplete = {name: value for name, value in leaves.items() if name != "s2"}
        refused = servers[0].push(stream, [{"when": 0, "value": incomplete}])
        assert error_of(refused) == (422, "DataError")
        for step in range(3):
            assert servers[0].push(stream, [{"when": step, "value": leaves}]).json() == {"released": []}
        answers = [server.push(stream, [{"when": 3, "value": leaves}]).json()["released"] for server in servers]
        ((period,), again) = answers
        assert again == [period]
        assert servers[1].get(f"/streams/{stream}/periods").json()["periods"] == [period]
    assert period["start"] == 0
    values = {name: np.array(steps) for name, steps in period["values"].items()}
    assert list(values) == ["nation", "north", "south", "n1", "n2", "s1", "s2"]
    assert (values["nation"] == values["n1"] + values["n2"] + values["s1"] + values["s2"]).all()


def test_the_one_command_starts_it_and_the_examples_of_the_readme_work(
    ledger: str, settings: dict[str, str], tmp_path: Path
) -> None:
    # With its URL in this variable the script that starts PostgreSQL gives the server that is already there.
    kept = {name: value for name, value in settings.items() if not name.startswith("OPTSTREAM")}
    given = {"OPTSTREAM_TEST_POSTGRES": ledger, "WORKERS": "2"}
    blocks = re.findall(r"^```sh\n(.*?)^```", (SERVICE / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks[0].strip() == "examples/service/run"
    with serving(kept | given, tmp_path, command=[SERVICE / "run"]) as (server,):
        for block in blocks[1:]:
            script = block.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
            done = subprocess.run(
                ["bash", "-euxo", "pipefail", "-c", script],
                cwd=ROOT,
                env=kept,
                check=False,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert [period["period"] for period in server.get("/streams/auvergne/periods").json()["periods"]] == [0]
        token = (ROOT / "build" / "service" / "token").read_text().strip()
        assert token in server.log.read_text()
