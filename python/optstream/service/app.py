"""The routes of the service, and their description as OpenAPI."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from time import monotonic
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from optstream import __version__
from optstream.errors import OptStreamError
from optstream.service.gateway import Gateway
from optstream.service.models import (
    LARGEST,
    Batch,
    Budget,
    Health,
    Overview,
    Period,
    Periods,
    Problem,
    Released,
    StatementContent,
    Steps,
    explain,
)
from optstream.service.refusals import KINDS, Refusal, refusal_of
from optstream.service.service import Service
from optstream.service.views import PAGE, View

__all__ = ["make_app"]

Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="A declared stream.")]
Number = Annotated[int, Path(ge=0, lt=LARGEST, description="The number of a period.")]
PERIOD = Query(ge=0, lt=LARGEST)
SMALL = 16_384
"""Bytes that are parsed without a thread."""
HEARTBEAT = 15.0
"""Seconds after which a client that follows a stream hears something."""
EVERYWHERE = ("BadRequest", "Timeout", "TooManyRequests", "HeadersTooLarge", "InternalError", "Busy", "AnswerTimeout")
READING = (*EVERYWHERE, "Unauthorized", "Forbidden", "NotFound", "RequestError", "LedgerError")
WRITING = (
    *READING,
    "BudgetError",
    "StreamError",
    "ConflictError",
    "BodyTooLarge",
    "UnsupportedMediaType",
    "DataError",
    "ParameterError",
    "ParameterTypeError",
)
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
PAGES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
BEARER = {"type": "http", "scheme": "bearer", "description": "The token of a client, as the settings declare it."}


def refused(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of refusals."""
    statuses = sorted({KINDS[kind].status for kind in kinds})
    return {
        status: {
            "model": Problem,
            "description": "; ".join(f"{kind}: {KINDS[kind].why}" for kind in kinds if KINDS[kind].status == status),
        }
        for status in statuses
    }


def make_app(service: Service) -> FastAPI:
    """Return the application of a service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="optstream",
        version=__version__,
        summary="Private periods of declared streams.",
        lifespan=lifespan,
        # Their pages would fetch scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    app.add_middleware(Gateway, service=service)
    _add_writing(app, service)
    _add_reading(app, service)
    _add_accounts(app, service)
    _add_watching(app, service)
    _add_refusals(app)
    _describe(app)
    return app


def _add_writing(app: FastAPI, service: Service) -> None:
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": Batch.model_json_schema()}}}}

    @app.post(
        "/streams/{name}/observations",
        response_model=Released,
        responses=refused(*WRITING),
        openapi_extra=_inlined(body) | _secured(),
    )
    async def observe(name: Name, request: Request) -> Response:
        """Take observations, all or none; answer with the periods that they complete or that were complete before."""
        intake = service.writable(name, request.scope["optstream.client"])
        request.scope["optstream.exchange"].stream = name
        _check_media(request)
        body = await request.body()
        parse = _parser(body, service.settings.limits.observations)
        # A thread costs more than a small body does.
        batch = parse() if len(body) < SMALL else await service.read(parse)
        pairs = batch.observations
        released = await service.push(intake, [pair.when for pair in pairs], [pair.value for pair in pairs])
        return _raw(b'{"released":[' + b",".join(released) + b"]}")


def _parser(body: bytes, most: int) -> Callable[[], Batch]:
    def parse() -> Batch:
        try:
            batch = Batch.model_validate_json(body)
        except ValidationError as error:
            raise Refusal("RequestError", explain(error.errors(include_input=False, include_url=False))) from None
        if len(batch.observations) > most:
            raise Refusal("RequestError", f"observations are {len(batch.observations)}, but must be at most {most}")
        return batch

    return parse


def _check_media(request: Request) -> None:
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media != "application/json" or "content-encoding" in request.headers:
        raise Refusal("UnsupportedMediaType", "the body must be application/json, without an encoding")


def _viewing(service: Service) -> Callable[[str, Request], View]:
    def view_of(name: str, request: Request) -> View:
        view = service.readable(name, request.scope["optstream.client"])
        request.scope["optstream.exchange"].stream = name
        return view

    return view_of


def _add_reading(app: FastAPI, service: Service) -> None:
    view_of = _viewing(service)

    @app.get("/streams/{name}/periods", response_model=Periods, responses=refused(*READING), openapi_extra=_secured())
    async def periods(
        name: Name,
        request: Request,
        first: Annotated[int | None, PERIOD] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 30,
    ) -> Response:
        """Show the released ones of ``limit`` periods from ``first`` on, or of the last; ``next`` is where to go on."""
        view = view_of(name, request)
        return _raw(await service.read(lambda: view.page(view.periods, first, limit)))

    @app.get(
        "/streams/{name}/periods/{number}", response_model=Period, responses=refused(*READING), openapi_extra=_secured()
    )
    async def period(name: Name, number: Number, request: Request) -> Response:
        """Show one released period, which never changes."""
        view = view_of(name, request)
        found = await service.read(lambda: view.periods.find(number))
        if found is None:
            raise Refusal("NotFound", f"period {number} is not released")
        return _raw(found)

    @app.get("/streams/{name}/steps", response_model=Steps, responses=refused(*READING), openapi_extra=_secured())
    async def steps(
        name: Name,
        request: Request,
        first: Annotated[int | None, PERIOD] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 30,
    ) -> Response:
        """Show ``limit`` steps that have left from ``first`` on, or the last ones; ``next`` is where to go on."""
        view = view_of(name, request)
        return _raw(await service.read(lambda: view.page(view.steps, first, limit)))


def _add_accounts(app: FastAPI, service: Service) -> None:
    view_of = _viewing(service)

    @app.get("/streams/{name}/budget", response_model=Budget, responses=refused(*READING), openapi_extra=_secured())
    async def budget(
        name: Name,
        request: Request,
        first: Annotated[int | None, PERIOD] = None,
        last: Annotated[int | None, PERIOD] = None,
    ) -> Response:
        """Show what is left in the worst window, and in those that meet the periods from ``first`` to ``last``."""
        view = view_of(name, request)
        content = await service.read(view.budget_content) | {"windows": None}
        if first is not None or last is not None:
            begin, end = (first or 0), (first or 0) if last is None else last
            if not begin <= end < begin + PAGE:
                raise Refusal("RequestError", f"last must be from first to first + {PAGE - 1}")
            content["windows"] = await service.read(lambda: view.windows(begin, end))
        return JSONResponse(content)

    @app.get(
        "/streams/{name}/statement",
        response_model=StatementContent,
        responses=refused(*READING),
        openapi_extra=_secured(),
    )
    async def statement(name: Name, request: Request) -> Response:
        """Show what is promised about a stream, in words and as data."""
        view_of(name, request)
        stated = service.settings.streams[name].mechanism.statement
        return JSONResponse({"words": str(stated), **json.loads(stated.to_json())})

    @app.get(
        "/streams/{name}/events",
        responses=refused(*READING) | {200: {"content": {"text/event-stream": {}}, "description": "Released periods."}},
        response_class=StreamingResponse,
        openapi_extra=_secured(),
    )
    async def events(
        name: Name, request: Request, after: Annotated[int | None, Query(ge=-1, lt=LARGEST)] = None
    ) -> Response:
        """Send released periods as they come, as events whose ids are their numbers; ``Last-Event-ID`` goes on."""
        view = view_of(name, request)
        begin = _resumed(request, after, view)
        follow = _follow(service, view, begin)
        return StreamingResponse(follow, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def _resumed(request: Request, after: int | None, view: View) -> int:
    """Return the first period that a client has not seen: by default the next one."""
    seen = request.headers.get("last-event-id", "")
    if seen.isdigit() and int(seen[:15]) < LARGEST:
        return int(seen[:15]) + 1
    if after is not None:
        return after + 1
    return 0 if view.last is None else view.last + 1


async def _follow(service: Service, view: View, begin: int) -> AsyncIterator[bytes]:
    gauge, kind = service.metrics.followers, view.news.name.removesuffix("s").encode()
    if service.followers >= service.settings.limits.events:
        yield b"event: busy\ndata: {}\nretry: 30000\n\n"
        return
    service.followers += 1
    gauge.set(service.followers)
    try:
        said = monotonic()
        yield b"retry: 2000\n\n"
        while not service.stopping.is_set():
            while view.last is not None and begin <= view.last:
                found = await service.read(_reader(view, begin))
                if found is not None:
                    yield b"event: %s\nid: %d\ndata: %s\n\n" % (kind, begin, found)
                begin += 1
            await service.news(HEARTBEAT)
            if monotonic() - said >= HEARTBEAT:
                said = monotonic()
                yield b": still here\n\n"
            await service.read(view.refresh)
    finally:
        service.followers -= 1
        gauge.set(service.followers)


def _reader(view: View, number: int) -> Callable[[], bytes | None]:
    return lambda: view.news.find(number)


def _add_watching(app: FastAPI, service: Service) -> None:
    @app.get("/livez", response_model=Health, responses=refused(*EVERYWHERE))
    async def livez() -> Response:
        """Say that the process runs."""
        return _raw(b'{"status":"ok","ledger":null,"witness":null,"age_seconds":null}')

    @app.get("/readyz", response_model=Health, responses=refused(*EVERYWHERE) | {503: {"model": Health}})
    async def readyz() -> Response:
        """Say whether the ledger answers, is the pinned one, and holds all that its witness knows."""
        well, content = service.health()
        return JSONResponse(content, 200 if well else 503)

    @app.get(
        "/metrics",
        response_class=Response,
        responses=refused(*EVERYWHERE, "Unauthorized", "Forbidden"),
        openapi_extra=_secured(),
    )
    async def metrics(request: Request) -> Response:
        """Show metrics for Prometheus; nothing in them is private."""
        token = request.scope["optstream.client"].token
        if not service.settings.open_metrics:
            if token is None:
                raise Refusal("Unauthorized", "a bearer token is needed")
            if not token.metrics:
                raise Refusal("Forbidden", "the token does not allow this")
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/overview", response_model=Overview, responses=refused(*EVERYWHERE, "Unauthorized", "LedgerError"))
    async def overview(request: Request) -> Response:
        """Show all streams that the client may read at a glance."""
        token = request.scope["optstream.client"].token
        allowed = frozenset() if token is None else token.read
        views = [service.views[name] for name, one in service.settings.streams.items() if one.public or name in allowed]
        streams = await service.read(lambda: [view.summary() for view in views])
        head = json.dumps(service.health()[1]).encode()
        return _raw(b'{"health":' + head + b',"streams":[' + b",".join(streams) + b"]}")

    for path, (name, media) in PAGES.items():
        content = files("optstream.service").joinpath(name).read_bytes()
        app.add_api_route(path, _page(content, media), include_in_schema=False, response_class=Response)


def _page(content: bytes, media: str) -> Callable[[], Awaitable[Response]]:
    async def page() -> Response:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return Response(content, media_type=media, headers=headers)

    return page


def _add_refusals(app: FastAPI) -> None:
    def answer(request: Request, refusal: Refusal) -> Response:
        exchange = request.scope["optstream.exchange"]
        exchange.refused = refusal.kind
        return JSONResponse(refusal.content(exchange.id), refusal.status, refusal.headers)

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> Response:
        return answer(request, error)

    @app.exception_handler(OptStreamError)
    async def library(request: Request, error: OptStreamError) -> Response:
        found = refusal_of(error)
        if found.kind in {"LedgerError", "InternalError"}:
            # What the database said is for the operator, not for the client.
            request.scope["optstream.exchange"].complain(error)
        return answer(request, found)

    @app.exception_handler(RequestValidationError)
    async def wrong(request: Request, error: RequestValidationError) -> Response:
        return answer(request, Refusal("RequestError", explain(list(error.errors()))))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        kinds = {404: "NotFound", 405: "MethodNotAllowed"}
        return answer(request, Refusal(kinds.get(error.status_code, "BadRequest"), "no such page or method"))


def _describe(app: FastAPI) -> None:
    """Name the security scheme, which the gate applies before any route is found."""
    original = app.openapi

    def described() -> dict[str, Any]:
        content = original()
        schemes = content.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["bearer"] = BEARER
        for path in content["paths"].values():
            for operation in path.values():
                # FastAPI's own form of a refusal is never sent.
                if operation["responses"].get("422", {}).get("description") == "Validation Error":
                    del operation["responses"]["422"]
        for unused in ("HTTPValidationError", "ValidationError"):
            content["components"].get("schemas", {}).pop(unused, None)
        return content

    app.openapi = described  # type: ignore[method-assign]


def _secured() -> dict[str, Any]:
    return {"security": [{"bearer": []}]}


def _inlined(content: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose definitions stand where they are used."""
    schema = content["requestBody"]["content"]["application/json"]["schema"]
    definitions = schema.pop("$defs")

    def inline(part: Any) -> Any:
        if isinstance(part, dict):
            if "$ref" in part:
                return inline(definitions[part["$ref"].rpartition("/")[2]])
            return {key: inline(value) for key, value in part.items()}
        return [inline(one) for one in part] if isinstance(part, list) else part

    content["requestBody"]["content"]["application/json"]["schema"] = inline(schema)
    return content


def _raw(content: bytes) -> Response:
    return Response(content, media_type="application/json", headers={"Cache-Control": "no-store"})
