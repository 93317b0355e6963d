"""The process that serves: it starts only if everything is as declared, and ends in time whatever clients do."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import uvicorn

from optstream.service.app import make_app
from optstream.service.connection import limited
from optstream.service.logs import log_as_json
from optstream.service.service import Service

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from optstream.service.settings import Settings

__all__ = ["serve"]

LOG = logging.getLogger("optstream.service")
GRACE = 2.0
"""Seconds after the time to stop in which threads may still end."""


class Server(uvicorn.Server):
    """A server that lets followers go when it stops, and whose end is no error."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop. Whatever hangs in a thread does not keep the process: what was begun survives a kill."""
        del frame
        if not self.should_exit:
            seconds = self._service.settings.shutdown_seconds + GRACE
            timer = threading.Timer(seconds, _end)
            timer.daemon = True
            timer.start()
        self.should_exit = True
        LOG.info("stopping", extra={"fields": {"signal": sig}})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, let go who only waits, then finish what was begun."""
        await self._service.announce_stop()
        await super().shutdown(sockets)


def _end() -> None:
    LOG.error("threads did not end in time; what they have begun is taken entirely or not at all")
    os._exit(1)


def serve(settings: Settings, *, host: str | None = None, port: int | None = None) -> None:
    """Serve until a signal comes.

    Args:
        settings: All that is declared.
        host: The address to listen at, instead of that of the settings.
        port: The port, instead of that of the settings.
    """
    log_as_json()
    service = Service(settings)
    limits = settings.limits
    options: dict[str, Any] = {
        "host": host or settings.host,
        "port": port or settings.port,
        "http": limited(limits, lambda reason: service.metrics.shed.labels(reason).inc()),
        "ws": "none",
        "log_config": None,
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "timeout_keep_alive": max(1, round(limits.idle_seconds)),
        "timeout_graceful_shutdown": max(1, round(settings.shutdown_seconds)),
        "h11_max_incomplete_event_size": limits.header_bytes,
    }
    Server(uvicorn.Config(make_app(service), **options), service).run()
