"""The use of gRPC by client and server: protocol version, channel options, metadata, errors."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping

import grpc
from google.protobuf.message import DecodeError

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
from cs_toolkit.network.liveness import SilenceTimer

# The newest protocol that is spoken here: incremented by every change of the control plane that the other
# side cannot ignore. Both sides use the newest one that both speak.
PROTOCOL_VERSION = 8
# The oldest one. The newest protocol of a minor version is still spoken by the next one
# (docs/reference/stability.md).
OLDEST_PROTOCOL = 8

PROTOCOL_KEY = "cs-protocol"
OLDEST_PROTOCOL_KEY = "cs-protocol-oldest"
TOOLKIT_KEY = "cs-toolkit"
RESERVATION_KEY = "cs-reservation"
PROOF_KEY = "cs-proof"
ERROR_KEY = "cs-error-bin"

_METADATA_BYTES = 64 << 10

# Pings show a lost connection after the peer timeout. gRPC answers them even if no call can end, because the
# framing of the connection is damaged, or Python is stuck: such a connection is ended after this multiple of
# the peer timeout without an answer to a heartbeat.
_STALLED_AFTER = 3

_HANDSHAKE_MS = 10_000
# A worker has one while it joins a run, a chief one for the whole run. Incomplete handshakes count, too.
_MAX_CONNECTIONS = 4096
# Calls at a time on one connection; a chief makes a few.
_MAX_STREAMS = 64

# Limit of an error's text on the wire; of a longer one the middle is left out.
_ERROR_CHARS = 12_000

_COMMON = (
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_metadata_size", _METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

Metadata = tuple[tuple[str, str], ...]
ChannelOptions = tuple[tuple[str, int], ...]


def server_options(peer_timeout_s: float) -> ChannelOptions:
    """Return the options of a server whose clients count as lost after a time of silence."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The other half of the descriptors is for the data plane and the processes of runs.
    connections = min(_MAX_CONNECTIONS, descriptors // 2)
    return (
        *_COMMON,
        *_keepalive(peer_timeout_s),
        # Peers that are connected and silent, and those of a handshake that does not end.
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        # Otherwise two servers could listen on the same port and share its connections.
        ("grpc.so_reuseport", 0),
        # Clients choose the interval of their pings.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1),
        ("grpc.http2.max_ping_strikes", 0),
    )


def client_options(peer_timeout_s: float) -> ChannelOptions:
    """Return the options of a client whose system counts as lost after a time of silence."""
    return (
        *_COMMON,
        *_keepalive(peer_timeout_s),
        # A chief must reach its CS system directly even if the site sets http_proxy.
        ("grpc.enable_http_proxy", 0),
    )


def _keepalive(peer_timeout_s: float) -> ChannelOptions:
    # gRPC answers pings without Python, so a process that holds the interpreter's lock for long, such as one
    # that writes a large checkpoint, does not count as lost. A ping is sent after a sixth of the time without
    # data, and the rest is for its answer: most of it, so that a process that was stopped itself after the
    # ping still reads the answer.
    timeout_ms = round(1000 * peer_timeout_s)
    ping_ms = timeout_ms // 6
    return (
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", timeout_ms - ping_ms),
        # For gRPC's own pings; with its default of a minute one of them would delay the keepalive.
        ("grpc.http2.ping_timeout_ms", timeout_ms - ping_ms),
    )


def has_stalled(silence: SilenceTimer) -> bool:
    """Return True if the calls of a connection count as stalled, by the silence of its heartbeats."""
    return silence.silence_s >= _STALLED_AFTER * silence.timeout_s


def describe_silence(peer: str, silence: SilenceTimer) -> str:
    """Return a line for the log about a peer that does not answer heartbeats."""
    text = f"{peer} has not answered for {silence.silence_s:.0f} s"
    limit_s = silence.timeout_s
    if silence.is_over:
        text, limit_s = f"{text}, except for pings", _STALLED_AFTER * limit_s
    return f"{text}; it counts as lost after {limit_s:g} s"


def client_metadata(reservation: str = "", proof: str = "") -> Metadata:
    """Return the metadata of a call, with those of a reservation and of a job if there are any."""
    of_job = ((RESERVATION_KEY, reservation), (PROOF_KEY, proof))
    return (
        (PROTOCOL_KEY, str(PROTOCOL_VERSION)),
        (OLDEST_PROTOCOL_KEY, str(OLDEST_PROTOCOL)),
        (TOOLKIT_KEY, TOOLKIT_VERSION),
        *(item for item in of_job if item[1]),
    )


def agree_on_protocol(oldest: int, newest: int) -> int | None:
    """Return the newest protocol that this side and a peer speak; None if there is none.

    Args:
        oldest: Oldest protocol of the peer; 0 if it announces only one, as versions before 0.3 do.
        newest: Newest protocol of the peer.
    """
    agreed = min(newest, PROTOCOL_VERSION)
    return agreed if agreed >= max(oldest or newest, OLDEST_PROTOCOL) else None


def describe_protocols(oldest: int, newest: int) -> str:
    """Return the protocols that a side speaks, as text; `oldest` is 0 if it announces only one."""
    return str(newest) if oldest in (0, newest) else f"{oldest} to {newest}"


def check_client(metadata: Mapping[str, str]) -> None:
    """Refuse a client with which this side has no protocol in common.

    Raises:
        ProtocolMismatchError: there is none.
    """
    client_toolkit = metadata.get(TOOLKIT_KEY, "unknown")
    try:
        newest = int(metadata[PROTOCOL_KEY])
        oldest = int(metadata.get(OLDEST_PROTOCOL_KEY, "0"))
    except (KeyError, ValueError):
        got = "of unknown version"
    else:
        if agree_on_protocol(oldest, newest) is not None:
            return
        got = describe_protocols(oldest, newest)
    ours = describe_protocols(OLDEST_PROTOCOL, PROTOCOL_VERSION)
    raise ProtocolMismatchError.between(got, client_toolkit, ours, TOOLKIT_VERSION)


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
    """Return the error that `error_metadata` wrote; None if there is none, or a damaged one."""
    for key, value in metadata or ():
        if key == ERROR_KEY and isinstance(value, bytes):
            try:
                detail = pb.ErrorDetail.FromString(value)
            except DecodeError:
                return None
            return from_wire(detail.code, detail.message, dict(detail.fields))
    return None
