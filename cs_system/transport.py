"""The use of gRPC by client and server: protocol version, channel options, metadata, errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import grpc

from cs_system.errors import (
    CsSystemError,
    ProtocolMismatchError,
    ReservationLostError,
    SystemBusyError,
    SystemStoppingError,
    from_wire,
)
from cs_system.messages import MESSAGE_BYTES
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit import __version__ as TOOLKIT_VERSION

# Incremented by every change of the control plane that the other side cannot ignore.
PROTOCOL_VERSION = 8

PROTOCOL_KEY = "cs-protocol"
TOOLKIT_KEY = "cs-toolkit"
RESERVATION_KEY = "cs-reservation"
PROOF_KEY = "cs-proof"
ERROR_KEY = "cs-error-bin"

# A killed process closes its connections immediately; keepalive detects a lost machine or network.
KEEPALIVE_MS = 10_000
_METADATA_BYTES = 64 << 10
# Limit of an error's text on the wire; of a longer one the middle is left out.
_ERROR_CHARS = 12_000

_COMMON = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
    # For gRPC's own pings; with its default of a minute one of them would delay the keepalive.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
SERVER_OPTIONS = (
    *_COMMON,
    # Otherwise two servers could listen on the same port and share its connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)
CLIENT_OPTIONS = (
    *_COMMON,
    # A chief must reach its CS system directly even if the site sets http_proxy.
    ("grpc.enable_http_proxy", 0),
)

Metadata = tuple[tuple[str, str], ...]


def client_metadata(reservation: str = "", proof: str = "") -> Metadata:
    """Return the metadata of a call, with those of a reservation and of a job if there are any."""
    of_job = ((RESERVATION_KEY, reservation), (PROOF_KEY, proof))
    return (
        (PROTOCOL_KEY, str(PROTOCOL_VERSION)),
        (TOOLKIT_KEY, TOOLKIT_VERSION),
        *(item for item in of_job if item[1]),
    )


def check_client(metadata: Mapping[str, str]) -> None:
    """Refuse a client with another protocol version.

    Raises:
        ProtocolMismatchError: the client's protocol is not this one.
    """
    got = metadata.get(PROTOCOL_KEY, "of unknown version")
    if got != str(PROTOCOL_VERSION):
        raise ProtocolMismatchError.between(
            got, metadata.get(TOOLKIT_KEY, "unknown"), PROTOCOL_VERSION, TOOLKIT_VERSION
        )


def shorten(text: str, limit: int = _ERROR_CHARS) -> str:
    """Return `text`, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 40) // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[-half:]}"


def status_code(error: CsSystemError) -> grpc.StatusCode:
    """Return the gRPC status of an error, for programs that know only gRPC."""
    if isinstance(error, SystemBusyError | ReservationLostError):
        return grpc.StatusCode.FAILED_PRECONDITION
    if isinstance(error, SystemStoppingError):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INVALID_ARGUMENT if error.exit_code == 2 else grpc.StatusCode.ABORTED


def error_metadata(error: CsSystemError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata of a failed call."""
    detail = pb.ErrorDetail(code=error.code, message=shorten(str(error)), fields=error.fields)
    return ((ERROR_KEY, detail.SerializeToString()),)


def error_from_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> CsSystemError | None:
    """Return the error that `error_metadata` wrote, or None."""
    for key, value in metadata or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            detail = pb.ErrorDetail.FromString(value)
            return from_wire(detail.code, detail.message, dict(detail.fields))
    return None
