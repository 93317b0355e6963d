"""An HTTP service that takes raw observations and gives back private periods.

Raw values come in by one endpoint, which needs a token, and leave by none: they are kept in the ledger until their
period is complete, and appear in no answer, no error message and no log. What the other endpoints show is private by
the guarantee of the plan, so anybody may read it.

Settings come from the environment; README.md lists them. Any number of processes may serve the same streams: the ledger
decides which of them releases a period, and all of them give the same answer.
"""

import json
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from fractions import Fraction
from hmac import compare_digest
from http import HTTPStatus
from pathlib import Path as File
from threading import Lock
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException as AnyHTTPException

import optstream as ops

LARGEST = 2**40
"""Steps and periods are numbered below this."""
PAGE = 366
"""How many periods one answer may hold."""
SHORTEST_TOKEN = 16
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


# Settings. A process that lacks one of them does not start.


def setting(name: str) -> str:
    """Return what the environment says, or stop."""
    if not os.environ.get(name):
        raise SystemExit(f"{name} is not set, but must be; see examples/service/README.md")
    return os.environ[name]


def clock() -> tuple[timedelta, datetime] | tuple[None, None]:
    """Return the length of a step and the time of step 0, or nothing where observations come with step numbers."""
    if not os.environ.get("OPTSTREAM_STEP") and not os.environ.get("OPTSTREAM_ORIGIN"):
        return None, None
    length = re.fullmatch(r"([1-9]\d{0,5})([smhd])", setting("OPTSTREAM_STEP"))
    if length is None:
        raise SystemExit(f"OPTSTREAM_STEP is {os.environ['OPTSTREAM_STEP']!r}, but must be like 30m, of s, m, h and d")
    return timedelta(**{UNITS[length[2]]: int(length[1])}), datetime.fromisoformat(setting("OPTSTREAM_ORIGIN"))


TOKEN = setting("OPTSTREAM_TOKEN")
if len(TOKEN) < SHORTEST_TOKEN:
    raise SystemExit(f"OPTSTREAM_TOKEN has {len(TOKEN)} characters, but must have at least {SHORTEST_TOKEN}")
STEP, ORIGIN = clock()
MECHANISM = ops.read_plan(os.environ.get("OPTSTREAM_PLAN") or File(__file__).with_name("plan.toml"))
# The curator's key is found by the library, in OPTSTREAM_KEY_FILE or OPTSTREAM_KEY.
LEDGER = ops.Ledger(
    setting("OPTSTREAM_LEDGER"),
    # A ledger that is missing, another one, or behind its witness is refused: its budget would be a fresh one.
    expect=os.environ.get("OPTSTREAM_LEDGER_ID") or None,
    witness=os.environ.get("OPTSTREAM_WITNESS") or None,
    timeout=10,
)
STREAMS: dict[str, ops.Stream] = {}
GUARD = Lock()
LOG = logging.getLogger("uvicorn.error")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the ledger when the process ends."""
    with LEDGER:
        yield


app = FastAPI(title="optstream", lifespan=lifespan)


# What comes in.

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
Number = Annotated[int, Path(ge=0, lt=LARGEST)]
Value = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Observation(BaseModel):
    """One raw value, or one for every leaf of a hierarchy, of one step."""

    when: Annotated[int, Field(strict=True, ge=0, lt=LARGEST)] | datetime
    value: Value | dict[str, Value] = Field(repr=False)


class Batch(BaseModel):
    """Observations that are taken all or none."""

    observations: list[Observation] = Field(min_length=1, max_length=100_000)


def stream(name: str) -> ops.Stream:
    """Return the one object of this process for a stream.

    Clients repeat what they are not sure of, perhaps to another process, so nothing may depend on how often or in which
    order observations of a period arrive: the first value of a step stays, and a period that is released is answered
    with its stored release. A period begins when the one before is complete.
    """
    with GUARD:
        if name not in STREAMS:
            STREAMS[name] = ops.Stream(
                MECHANISM,
                name=name,
                ledger=LEDGER,
                create=True,
                step=STEP,
                origin=ORIGIN,
                late="stored",
                duplicate="keep",
                disorder="accept",
                missing="refuse",
            )
        return STREAMS[name]


# What goes out. Endpoints are plain functions: the library waits for the database, so each runs in a thread.


@app.post("/streams/{name}/observations")
def observe(name: Name, batch: Batch) -> dict[str, Any]:
    """Take observations; answer with the periods that they complete, or that were complete before."""
    pairs = batch.observations
    releases = stream(name).push_many([pair.when for pair in pairs], [pair.value for pair in pairs])
    return {"released": [shown(release) for release in releases]}


@app.get("/streams/{name}/periods")
def periods(
    name: Name,
    first: Annotated[int, Query(ge=0, lt=LARGEST)] = 0,
    last: Annotated[int, Query(ge=0, lt=LARGEST)] = LARGEST - 1,
) -> dict[str, Any]:
    """Show the released periods of a range, and where to go on if they are more than one answer may hold."""
    numbers = [entry.period for entry in LEDGER.history(name) if entry.released and first <= entry.period <= last]
    page, more = numbers[:PAGE], numbers[PAGE] if len(numbers) > PAGE else None
    releases = LEDGER.releases(name, page[0], page[-1]) if page else []
    return {"periods": [shown(release) for release in releases], "next": more}


@app.get("/streams/{name}/periods/{number}")
def period(name: Name, number: Number) -> dict[str, Any]:
    """Show one released period."""
    release = LEDGER.stored(name, number)
    if release is None:
        raise HTTPException(404, f"period {number} of stream {name!r} is not released")
    return shown(release)


def shown(release: ops.Release | ops.TreeRelease) -> dict[str, Any]:
    """Return a period: a value for every step, or for every node of a hierarchy and every step, and what it costs."""
    values, step = release.values, (release.period or 0) * MECHANISM.guarantee.w
    return {
        "period": release.period,
        "start": step if STEP is None or ORIGIN is None else (ORIGIN + step * STEP).isoformat(),
        "values": {node: column.tolist() for node, column in values.items()}
        if isinstance(values, dict)
        else values.tolist(),
        "epsilon": exact(release.statement.epsilon),
    }


@app.get("/streams/{name}/budget")
def budget(name: Name) -> dict[str, Any]:
    """Show what every window is held to, and what is left in those that some release meets."""
    left = LEDGER.remaining(name)
    policy = left.policy
    return {
        "policy": {
            "epsilon": exact(policy.epsilon),
            "w": policy.w,
            "alpha": policy.alpha,
            "neighbours": policy.neighbours,
        },
        "least": exact(left.epsilon),
        "windows": [{"first": run.first, "last": run.last, "left": exact(run.epsilon)} for run in left.windows],
    }


@app.get("/streams/{name}/statement")
def statement(name: Name) -> dict[str, Any]:
    """Show what is promised about a stream, in words and as data."""
    LEDGER.policy(name)
    return {"words": str(MECHANISM.statement), **json.loads(MECHANISM.statement.to_json())}


@app.get("/health")
def health() -> dict[str, Any]:
    """Say whether the ledger answers."""
    return {"status": "ok", "streams": len(LEDGER.streams)}


def exact(value: Fraction) -> dict[str, Any]:
    """Return a rational as what it is and as what people read."""
    return {"exact": str(value), "decimal": float(value)}


# What is refused, and how. A message never holds a raw value.

STATUS: tuple[tuple[type[ops.OptStreamError], int], ...] = (
    (ops.BudgetError, 403),  # Not 429: the budget of a window does not come back, so waiting does not help.
    (ops.ConflictError, 409),
    (ops.UnknownStreamError, 404),
    (ops.LedgerError, 503),
    (ops.StreamError, 409),
    (ops.DataError, 422),
    (ops.ParameterError, 422),
    (ops.ParameterTypeError, 422),
)


def refusal(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the one form that all errors have."""
    return JSONResponse({"error": {"type": kind, "message": message}}, status, headers)


@app.exception_handler(ops.OptStreamError)
async def library_refused(_: Request, error: ops.OptStreamError) -> Response:
    """Translate an error of the library."""
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    kind = type(error).__name__
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return refusal(status, kind, str(error))
    # What the database said is for the operator, not for the client.
    LOG.error("%s: %s", kind, error)
    return refusal(status, kind, "nothing was lost; the same request may be made again", {"Retry-After": "5"})


@app.exception_handler(RequestValidationError)
async def request_is_wrong(_: Request, error: RequestValidationError) -> Response:
    """Say where a request is wrong and what it should be, but not what it is."""
    # From the fifth part on a place may name keys of the input.
    found = dict.fromkeys(f"{'.'.join(map(str, one['loc'][:4]))}: {one['msg']}" for one in error.errors())
    return refusal(422, "RequestError", "; ".join(list(found)[:10]))


@app.exception_handler(AnyHTTPException)
async def not_found(_: Request, error: AnyHTTPException) -> Response:
    """Give the framework's own errors the same form."""
    return refusal(error.status_code, HTTPStatus(error.status_code).phrase, error.detail, dict(error.headers or {}))


@app.middleware("http")
async def require_token(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
    """Let nobody write without the token; a body is not even read."""
    given = request.headers.get("authorization", "")
    if request.method in {"GET", "HEAD"} or compare_digest(given.encode(), f"Bearer {TOKEN}".encode()):
        return await proceed(request)
    return refusal(401, "Unauthorized", "a valid bearer token is needed", {"WWW-Authenticate": "Bearer"})
