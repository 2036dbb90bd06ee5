"""The HTTP API of the server.

`GET /health` reports its health, `GET /metrics` its metrics, and `POST /store/VERB` is the store for other processes on
this machine, in the form of `stores.wire`; it needs the key of the server (`stores.server_key`).

The server is reachable from this machine only. It listens on loopback, refuses requests that a page of another site can
make a browser send (`redrive.browser_guard`), and accepts requests for the store only with their content type. Requests
and what they decompress to are limited (`stores.expansion`).
"""

import json
import logging
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from redrive.browser_guard import BrowserGuard, is_loopback_name
from redrive.errors import (
    FormatError,
    LetterNotFoundError,
    LifecycleError,
    OperationNotFoundError,
    QueryError,
    RedriveError,
    ServiceError,
    SettingsError,
    StoreAccessError,
    StoreError,
    use_instead,
)
from redrive.listening import Listening, bind, listen_at
from redrive.serve.condition import OK, Condition
from redrive.serve.figures import Figures
from redrive.settings import LimitSettings
from redrive.stores import wire
from redrive.stores.base import Store
from redrive.stores.expansion import too_large_request
from redrive.stores.server_key import StoreAccess, proof_of

_LOG: Final = logging.getLogger("redrive.server.http")
_GRACE: Final = 5  # seconds that answers under way may take when it closes
_IDLE: Final = 75  # seconds after which a connection without questions is closed
_MIN_NONCE_CHARS: Final = 16
_MAX_NONCE_CHARS: Final = 128
_DEFAULT_LIMITS: Final = LimitSettings()
_STATUS: Final = {
    LetterNotFoundError: HTTPStatus.NOT_FOUND,
    OperationNotFoundError: HTTPStatus.NOT_FOUND,
    LifecycleError: HTTPStatus.CONFLICT,
    SettingsError: HTTPStatus.BAD_REQUEST,
    QueryError: HTTPStatus.BAD_REQUEST,
    FormatError: HTTPStatus.BAD_REQUEST,
}


def check_loopback(host: str) -> None:
    """Refuse to be reached by others."""
    if not is_loopback_name(host):
        raise SettingsError(
            f"server.host = '{host:.60}' is not a loopback address; the server has no authentication, so "
            "only 127.0.0.1, ::1 and localhost are allowed"
        )


async def start_web(
    store: Store,
    condition: Condition,
    figures: Figures,
    host: str,
    port: int,
    access: StoreAccess,
    limits: LimitSettings = _DEFAULT_LIMITS,
    hosts: Iterable[str] = (),
) -> Listening:
    """Listen there; port 0 is any that is free. `hosts`: further names that it answers to."""
    return await listen(application(store, condition, figures, access, limits, hosts), host, port)


async def listen(app: ASGIApp, host: str, port: int) -> Listening:
    """Let this application listen there."""
    check_loopback(host)
    try:
        place = bind(host, port)
    except OSError as error:
        raise ServiceError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another port with --port"
        ) from error
    return await listen_at(place, app, grace=_GRACE, timeout_keep_alive=_IDLE, log_level="warning")


# --- answers ------------------------------------------------------------------------------------------------


def application(
    store: Store,
    condition: Condition,
    figures: Figures,
    access: StoreAccess,
    limits: LimitSettings,
    hosts: Iterable[str] = (),
) -> ASGIApp:
    """Everything that is answered."""

    async def health(_request: Request) -> Response:
        report = await condition.report()
        status = HTTPStatus.OK if report["status"] == OK else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(json.dumps(report, indent=2) + "\n", status, media_type="application/json")

    async def metrics(_request: Request) -> Response:
        try:
            return Response(await figures.text(), media_type=CONTENT_TYPE_LATEST)
        except RedriveError as error:
            return Response(f"{error}\n", HTTPStatus.SERVICE_UNAVAILABLE, media_type="text/plain")

    routes = [Route("/health", health), Route("/metrics", metrics), *store_routes(store, access, limits)]
    return BrowserGuard(Starlette(routes=routes), hosts, setting="server.allowed_hosts")


def store_routes(
    store: Store, access: StoreAccess, limits: LimitSettings = _DEFAULT_LIMITS
) -> tuple[Route, ...]:
    """The store for other processes that have the key."""

    async def prove(request: Request) -> Response:
        nonce = request.query_params.get("nonce", "")
        if not _MIN_NONCE_CHARS <= len(nonce) <= _MAX_NONCE_CHARS:
            return Response("the nonce must have 16 to 128 characters\n", HTTPStatus.BAD_REQUEST)
        told = wire.KeyProof(proof_of(access.key, nonce), None if access.file is None else str(access.file))
        return Response(msgspec.json.encode(told), media_type="application/json")

    def refusal() -> Response:
        file = f"which is in {access.file} (readable by its account); " if access.file is not None else ""
        told = StoreAccessError(
            f"the store of this server needs its key, {file}send it as 'Authorization: Bearer KEY', or set "
            "REDRIVE_SERVER_KEY for redrive"
        )
        return Response(
            wire.error_out(told),
            HTTPStatus.UNAUTHORIZED,
            {"WWW-Authenticate": 'Bearer realm="redrive store"'},
            media_type=wire.CONTENT_TYPE,
        )

    async def answer(request: Request) -> Response:
        if not access.allows(request.headers.get("authorization")):
            return refusal()
        verb = request.path_params["verb"]
        try:
            if verb not in wire.VERBS:
                raise SettingsError(f"the store has no verb '{verb:.60}'{use_instead(verb, wire.VERBS)}")  # noqa: TRY301
            if request.headers.get("content-type") != wire.CONTENT_TYPE:
                raise FormatError(f"requests to the store must have the content type {wire.CONTENT_TYPE}")  # noqa: TRY301
            found = await wire.answer(store, verb, await _body(request, limits), limits)
        except RedriveError as error:
            status = _STATUS.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)
            return Response(wire.error_out(error), status, media_type=wire.CONTENT_TYPE)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)  # an aborted upload; nobody reads the answer
        except Exception as error:  # noqa: BLE001  whoever asked is told, whatever it is
            _LOG.exception("store request failed verb=%s", verb)
            told = StoreError(f"internal server error: {type(error).__name__}; see the log of the server")
            return Response(
                wire.error_out(told), HTTPStatus.INTERNAL_SERVER_ERROR, media_type=wire.CONTENT_TYPE
            )
        return Response(found, media_type=wire.CONTENT_TYPE)

    return (
        Route("/store/proof", prove, methods=["GET"]),
        Route("/store/{verb}", answer, methods=["POST"]),
    )


async def _body(request: Request, limits: LimitSettings) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.request_bytes:
        raise too_large_request(limits)
    body = bytearray()
    async for piece in request.stream():
        if len(body) + len(piece) > limits.request_bytes:
            raise too_large_request(limits)
        body += piece
    return bytes(body)
