"""A client's connection to the control plane: the channel, errors as exceptions.

gRPC hides why it cannot connect, and waits long for a listener that never answers. So `probe` connects first,
and only a listener that answers it is given to gRPC.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import grpc

from cs_system.address import SystemAddress, is_loopback
from cs_system.client.heartbeats import Heartbeats
from cs_system.client.probe import probe
from cs_system.errors import (
    ConnectionLostError,
    CsSystemError,
    NotACsSystemError,
    ProtocolMismatchError,
    SystemUnreachableError,
    TlsFailedError,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.proto import cs_system_pb2_grpc
from cs_system.security import client_credentials, grpc_channel_credentials
from cs_system.transport import (
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    Metadata,
    agree_on_protocol,
    client_metadata,
    client_options,
    describe_protocols,
    error_from_metadata,
)
from cs_toolkit import __version__ as TOOLKIT_VERSION
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.tls import CredentialsError
from cs_toolkit.spans import ClockSample, estimate_offset

log = logging.getLogger("cs_system.client")

# The delay of the network varies: the answer that came fastest bounds the offset best.
_CLOCK_CALLS = 4

# Status codes of calls that arrive while a system is shutting down, or later.
ENDING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@cache
def _warn_unencrypted(address: SystemAddress) -> None:
    """Warn, once in this process, of a connection to another machine without TLS."""
    if not is_loopback(address.host):
        log.warning(
            "the connections to the CS system at %s are not encrypted, and the system is not authenticated; "
            "see `cs_system certs --help`",
            address,
        )


class Connection:
    """An open connection to a CS system that speaks one of our protocol versions.

    Args:
        address: Address of the control plane.
        timeout_s: Limit for the first answer.

    Attributes:
        address: The same.
        peer_timeout_s: Silence after which the system counts as lost.
        nonce: Nonce of the system's process.
        public_key: Key to seal secrets to it.
        credentials: Credentials with which TLS is used; None without TLS.

    Raises:
        SystemUnreachableError: nothing answers there.
        NotACsSystemError: something else answers.
        ProtocolMismatchError: there is no protocol that both sides speak.
        TlsFailedError: only one side uses TLS, or a certificate is not accepted.
    """

    def __init__(self, address: SystemAddress, timeout_s: float) -> None:
        self.address = address
        self.nonce, self.public_key = "", b""
        self._timeout_s = timeout_s
        self.peer_timeout_s = peer_timeout_s(os.environ)
        self._heartbeats: Heartbeats | None = None
        options = client_options(self.peer_timeout_s)
        try:
            own = client_credentials()
            self.credentials = own if probe(address, timeout_s, own) else None
            if self.credentials is not None:
                credentials = grpc_channel_credentials(self.credentials)
                self._channel = grpc.secure_channel(str(address), credentials, options=options)
        except CredentialsError as error:
            raise TlsFailedError(str(error)) from None
        if self.credentials is None:
            _warn_unencrypted(address)
            self._channel = grpc.insecure_channel(str(address), options=options)
        self._stub = cs_system_pb2_grpc.CsSystemStub(self._channel)
        try:
            self._check_system()
        except BaseException:
            self.close()
            raise

    def _check_system(self) -> None:
        try:
            info = self._stub.Info(pb.InfoRequest(), timeout=self._timeout_s, metadata=client_metadata())
        except grpc.RpcError as error:
            known = error_from_metadata(error.trailing_metadata())
            if known is not None:
                raise known from None
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                tried = f"a call of its control plane, for {self._timeout_s:g} s"
                raise SystemUnreachableError.at(self.address, tried, "no answer") from None
            if error.code() in ENDING:  # the listener of a moment ago has ended
                raise SystemUnreachableError.at(self.address, "a call", str(error.details())) from None
            raise NotACsSystemError.at(
                self.address, f"it speaks HTTP/2 and answers {error.code().name}: {error.details()}"
            ) from None
        if agree_on_protocol(info.oldest_protocol, info.protocol) is None:
            raise ProtocolMismatchError.between(
                describe_protocols(OLDEST_PROTOCOL, PROTOCOL_VERSION),
                TOOLKIT_VERSION,
                describe_protocols(info.oldest_protocol, info.protocol),
                info.version,
            )
        self.nonce, self.public_key = info.nonce, info.public_key

    def read_clock(self) -> tuple[str, ClockSample]:
        """Return the id of the system's clock, and the best of a few estimates of its offset from ours."""
        samples = []
        for _ in range(_CLOCK_CALLS):
            asked_s = time.monotonic()
            info = self.call("Info", pb.InfoRequest(), self._timeout_s)
            samples.append(estimate_offset(asked_s, time.monotonic(), info.clock_s))
        return info.clock_id, min(samples, key=lambda sample: sample.error_s)

    def call(
        self, rpc: str, request: Any, timeout_s: float | None = None, metadata: Metadata | None = None
    ) -> Any:
        """Make a call with a single answer; `request` is a message or an iterator of messages.

        Raises:
            CsSystemError: the class that the server raised.
            ConnectionLostError: the connection broke.
        """
        with self.errors():
            return self.stream(rpc, request, timeout_s, metadata)

    def stream(
        self, rpc: str, request: Any, timeout_s: float | None = None, metadata: Metadata | None = None
    ) -> Any:
        """Make a call with many answers: an iterator with `cancel()`. Iterate over it inside `errors`.

        Raises:
            ConnectionLostError: the connection has been ended because its calls had stalled.
        """
        stub = getattr(self._stub, rpc)
        try:
            return stub(request, timeout=timeout_s, metadata=metadata or client_metadata())
        except ValueError:  # of gRPC, for a channel that is closed
            if self._heartbeats is None or not self._heartbeats.has_stalled:
                raise
            raise self._lost_error("") from None

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Translate gRPC errors in the body into exceptions of `cs_system.errors`."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._translate_error(error) from None

    def _translate_error(self, error: Any) -> CsSystemError:
        known = error_from_metadata(error.trailing_metadata())
        if known is not None:
            return known
        code, details = error.code(), error.details()
        if code in ENDING:
            return self._lost_error(details)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ConnectionLostError(
                f"the CS system at {self.address} is running but has not answered in time; see its log, "
                "and resume from the last checkpoint"
            )
        return CsSystemError(f"the CS system at {self.address} failed: {code.name}: {details}")

    def _lost_error(self, details: str) -> ConnectionLostError:
        silence = self._heartbeats and self._heartbeats.silence_text
        return ConnectionLostError(
            f"the connection to the CS system at {self.address} broke ({silence or details}); "
            "see its log, and resume from the last checkpoint"
        )

    def start_heartbeats(self) -> Heartbeats:
        """Send heartbeats until the connection is closed."""
        self._heartbeats = Heartbeats(
            self._stub.Heartbeat,
            f"the CS system at {self.address}",
            self.peer_timeout_s,
            self._channel.close,
        )
        return self._heartbeats

    def close(self) -> None:
        """Close the connection and all calls on it."""
        if self._heartbeats is not None:
            self._heartbeats.close()
        self._channel.close()
