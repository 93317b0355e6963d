"""``optstream serve`` and ``optstream token``: the HTTP service, and what its clients must know."""

import os
import secrets
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from optstream.cli.exits import OutputError, UsageError, emit, notice

__all__ = ["create_token", "serve"]

NEEDED = ("fastapi", "prometheus_client", "uvicorn")


def serve(
    *,
    config: Annotated[Path, typer.Option("--config", exists=True, dir_okay=False, help="Settings of the service.")],
    host: Annotated[str | None, typer.Option("--host", help="Address, instead of that of the settings.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port, instead of that of the settings.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether settings and ledger are well.")] = False,
) -> None:
    """Serve declared streams over HTTP: observations in, private periods out. See docs/service.md."""
    if not all(map(find_spec, NEEDED)):
        raise UsageError("the service needs more packages: pip install 'optstream[service]'")
    from optstream.service.server import serve as run  # noqa: PLC0415  (needs the extra)
    from optstream.service.service import Service  # noqa: PLC0415
    from optstream.service.settings import read_settings  # noqa: PLC0415

    settings = read_settings(config)
    if check:
        Service(settings).ledger.close()
        notice(f"{len(settings.streams)} streams and {len(settings.tokens)} tokens are declared, the ledger is well")
        return
    run(settings, host=host, port=port)


def create_token(*, file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write the token to.")]) -> None:
    """Write a new token to a file that its owner alone can read, and print its SHA-256 for the settings."""
    token = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(f"FILE is {file}, which exists, but must not") from None
    except OSError as error:
        raise OutputError(f"cannot write {file}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as output:
        output.write(f"{token}\n")
    emit(f"{sha256(token.encode()).hexdigest()}\n".encode())
