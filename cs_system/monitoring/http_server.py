"""The HTTP server of a system: its status page, live updates, JSON and metrics, all of them read-only.

It runs in its own thread with its own event loop, so that a slow browser never delays the control plane.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast
from urllib.parse import urlsplit

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from cs_system.address import is_loopback
from cs_system.errors import PortInUseError
from cs_system.monitoring.board import Board
from cs_system.monitoring.metrics import make_registry
from cs_system.monitoring.page import FOLDER, Page
from cs_toolkit.log_lines import LineLimiter
from cs_toolkit.network.connection import shut_down
from cs_toolkit.security.tls import Credentials

log = logging.getLogger("cs_system.server")

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Scope = MutableMapping[str, Any]

# Connections of all kinds; further ones are closed. The system needs its descriptors for workers.
MAX_CONNECTIONS = 128
# Connections in their TLS handshake. For one more, the oldest is dropped: a browser needs milliseconds, so
# that idle peers do not keep it out.
MAX_HANDSHAKES = 64
# Open pages with live updates.
MAX_PAGES = 32
# A client that has not sent its request, or not taken an update, by then is disconnected.
CLIENT_TIMEOUT_S = 10.0
UPDATE_EVERY_S = 1.0
_STOP_TIMEOUT_S = 2.0
# Pause after a failed accept: without file descriptors, the listener stays ready and every accept fails.
_ACCEPT_PAUSE_S = 0.2
# asyncio leaves a failed TLS handshake in a reference cycle, with up to 330 KiB of memory.
_COLLECT_EVERY = 256
_REQUEST_BYTES = 16 << 10

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_ENCODED_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class StatusServer:
    """Serves the newest snapshot of a board until `close`.

    Args:
        board: The figures.
        host: Address to listen on.
        port: 0 takes any free port.
        credentials: For TLS, with the certificates of browsers; None serves without encryption.

    Attributes:
        port: The port in use.

    Raises:
        PortInUseError: the address cannot be listened on.
    """

    def __init__(self, board: Board, host: str, port: int, credentials: Credentials | None = None) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listener = socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)
        except OSError as error:
            raise PortInUseError.at(host, port, "--http-port", error.strerror or str(error)) from error
        self._socket = _Listener(fileno=listener.detach())
        self.port: int = self._socket.getsockname()[1]
        tls = None if credentials is None else _renewing_context(credentials)
        # Lines about requests would let any client fill the log.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self._server = uvicorn.Server(
            uvicorn.Config(
                _Guarded(
                    make_app(board, lambda: self._server.should_exit), tls is None and is_loopback(host)
                ),
                loop="asyncio",  # another one would accept connections past `_Listener`
                http=cast(type[asyncio.Protocol], functools.partial(_LimitedProtocol, self._socket)),
                backlog=MAX_CONNECTIONS,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=int(CLIENT_TIMEOUT_S),
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=_REQUEST_BYTES,
                ssl_context_factory=None if tls is None else lambda *_: tls,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="status page", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the server and its connections."""
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()


def _renewing_context(credentials: Credentials) -> ssl.SSLContext:
    """Return a context whose connections use the newest certificate: asyncio takes only one context."""
    context = credentials.server_context

    def use_newest(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = credentials.server_context

    context.sni_callback = use_newest
    return context


class _Listener(socket.socket):
    """The listening socket; it limits the connections that are in their TLS handshake."""

    # asyncio does not limit them, gives each a minute, and calls no protocol before they are complete. With
    # all descriptors in use, it logs each of its attempts to accept, thousands a second.

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._handshakes: list[socket.socket] = []  # in the order of their arrival
        self._accepted = itertools.count(1)
        self._error_lines = LineLimiter(log, per_minute=1)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, for which the oldest one in its handshake is dropped if there are too many."""
        try:
            sock, peer = super().accept()
        except BlockingIOError:
            raise
        except OSError as error:
            self._error_lines.log(
                logging.ERROR, "the status page cannot accept a connection: %s", error.strerror
            )
            time.sleep(_ACCEPT_PAUSE_S)
            raise BlockingIOError from None
        self._handshakes = [each for each in self._handshakes if each.fileno() >= 0]
        if len(self._handshakes) >= MAX_HANDSHAKES:
            shut_down(self._handshakes.pop(0))
        self._handshakes.append(sock)
        if next(self._accepted) % _COLLECT_EVERY == 0:
            gc.collect()
        return sock, peer

    def end_handshake(self, descriptor: int) -> None:
        """Record that the connection with this descriptor has completed its handshake."""
        self._handshakes = [each for each in self._handshakes if each.fileno() != descriptor]


class _LimitedProtocol(H11Protocol):
    """A connection that is closed if there are too many, or if the client is too slow.

    A client is too slow if a request does not arrive in time, or if it does not read a response.
    """

    # uvicorn limits none of these: `limit_concurrency` answers requests, the keep-alive time ends with the
    # first byte of a request, and a transport that is closed waits until its buffer is sent.
    _request_deadline: asyncio.TimerHandle | None = None
    _read_deadline: asyncio.TimerHandle | None = None

    def __init__(self, listener: _Listener, **options: Any) -> None:
        super().__init__(**options)
        self._listener = listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._listener.end_handshake(transport.get_extra_info("socket").fileno())
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._limit_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for deadline in (self._request_deadline, self._read_deadline):
            if deadline is not None:
                deadline.cancel()

    def on_response_complete(self) -> None:
        self._limit_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._read_deadline = self.loop.call_later(CLIENT_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._read_deadline is not None:
            self._read_deadline.cancel()

    def _limit_request(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
        self._request_deadline = self.loop.call_later(CLIENT_TIMEOUT_S, self._close_without_request)

    def _close_without_request(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is None or cycle.response_complete:
            self.transport.abort()


class _Guarded:
    """An application with the headers in all of its responses.

    Args:
        app: The application.
        is_private: It answers only requests for a loopback address.
    """

    def __init__(self, app: Starlette, is_private: bool) -> None:
        self._app = app
        self._is_private = is_private

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        app: ASGIApp = self._app
        # A web site whose name resolves to a loopback address could read the page in its visitors' browsers.
        asked = Headers(scope=scope).get("host", "localhost")
        if self._is_private and not is_loopback(_host_name(asked)):
            text = f"got a request for the host {asked!r:.200}, expected localhost or a loopback address\n"
            app = PlainTextResponse(text, 421)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_ENCODED_HEADERS]
            await send(message)

        await app(scope, receive, send_with_headers)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def make_app(board: Board, is_ending: Callable[[], bool]) -> Starlette:
    """Return the application; `is_ending` ends the live updates."""
    page = Page()
    registry = make_registry(lambda: board.latest)

    async def document(request: Request) -> Response:
        return HTMLResponse(page.document(board.latest))

    async def status(request: Request) -> Response:
        snapshot = board.latest
        return JSONResponse({**snapshot.info.to_json(), "time": snapshot.time})

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    async def healthy(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def asset(name: str, media_type: str) -> Route:
        async def send_asset(request: Request) -> Response:
            return FileResponse(FOLDER / name, media_type=media_type)

        return Route(f"/{name}", send_asset)

    return Starlette(
        routes=[
            Route("/", document),
            Route("/events", LiveUpdates(board, page, is_ending)),
            Route("/status.json", status),
            Route("/metrics", metrics),
            Route("/healthz", healthy),
            asset("status.css", "text/css"),
            asset("status.js", "text/javascript"),
        ]
    )


class LiveUpdates:
    """Server-sent events with the sections of the page that have changed."""

    def __init__(self, board: Board, page: Page, is_ending: Callable[[], bool]) -> None:
        self._board, self._page = board, page
        self._is_ending = is_ending
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a browser until it leaves."""
        if self._open >= MAX_PAGES:
            text = f"{MAX_PAGES} pages are open already; close some, or ask again later\n"
            await PlainTextResponse(text, 503, {"Retry-After": "30"})(scope, receive, send)
            return
        self._open += 1
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        try:
            await send(_EVENT_STREAM)
            known: dict[str, str] = {}
            while not self._is_ending() and not gone.done():
                # Waits while the browser takes nothing, with at most 64 KiB in the buffer.
                await send({"type": "http.response.body", "body": self._event(known), "more_body": True})
                await asyncio.wait({gone}, timeout=UPDATE_EVERY_S)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._open -= 1
            gone.cancel()

    def _event(self, known: dict[str, str]) -> bytes:
        """Return the event for a browser that has the sections `known`, and update them."""
        snapshot = self._board.latest
        sections = self._page.sections(snapshot)
        changed = {name: html for name, html in sections.items() if known.get(name) != html}
        known.update(changed)
        title = f"{snapshot.info.state.capitalize()} · CS system at {snapshot.info.address}"
        data = json.dumps({"title": title, "sections": changed})
        return f"event: sections\ndata: {data}\n\n".encode()


_EVENT_STREAM = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
