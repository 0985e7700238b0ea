"""A client's connection to a control plane: the channel, what every call carries, errors as exceptions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from cs_system.address import SystemAddress
from cs_system.errors import (
    ConnectionLostError,
    CsSystemError,
    NotACsSystemError,
    ProtocolMismatchError,
    SystemUnreachableError,
)
from cs_system.probe import probe
from cs_system.proto import cs_system_pb2 as pb
from cs_system.proto import cs_system_pb2_grpc
from cs_system.transport import CLIENT_OPTIONS, client_metadata, error_from_metadata
from cs_system.version import PROTOCOL_VERSION, TOOLKIT_VERSION

ENDING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""Of calls that come in the last moment of a system, or later."""


class Connection:
    """An open connection to a CS system of the same protocol.

    Args:
        address: Of the control plane.
        timeout_s: For the first answer.

    Raises:
        SystemUnreachableError: nothing answers there.
        NotACsSystemError: something else answers.
        ProtocolMismatchError: the system is of another version.
    """

    def __init__(self, address: SystemAddress, timeout_s: float) -> None:
        self.address = address
        self._timeout_s = timeout_s
        probe(address, timeout_s)
        self._channel = grpc.insecure_channel(str(address), options=CLIENT_OPTIONS)
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
            if error.code() in ENDING:  # what listened a moment ago has ended
                raise SystemUnreachableError.at(self.address, "a call", str(error.details())) from None
            raise NotACsSystemError.at(
                self.address, f"it speaks HTTP/2 and answers {error.code().name}: {error.details()}"
            ) from None
        if info.protocol != PROTOCOL_VERSION:
            raise ProtocolMismatchError.between(
                PROTOCOL_VERSION, TOOLKIT_VERSION, info.protocol, info.version
            )

    def call(
        self, rpc: str, request: Any, timeout_s: float | None = None, reservation: str | None = None
    ) -> Any:
        """A call with one answer; `request` is a message or an iterator of messages.

        Raises:
            CsSystemError: the class that the server raised.
            ConnectionLostError: the connection broke.
        """
        with self.errors():
            return getattr(self._stub, rpc)(request, timeout=timeout_s, metadata=client_metadata(reservation))

    def stream(
        self, rpc: str, request: Any, reservation: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """A call with many answers: an iterator with `cancel()`. Iterate it inside `errors`."""
        return getattr(self._stub, rpc)(request, timeout=timeout_s, metadata=client_metadata(reservation))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raises what went wrong in a call as an exception of `cs_system.errors`."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._translated(error) from None

    def _translated(self, error: Any) -> CsSystemError:
        known = error_from_metadata(error.trailing_metadata())
        if known is not None:
            return known
        code, details = error.code(), error.details()
        if code in ENDING:
            return ConnectionLostError(
                f"the connection to the CS system at {self.address} broke ({details}); "
                "see its log, and resume from the last checkpoint"
            )
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ConnectionLostError(
                f"the CS system at {self.address} lives and has not answered in time; see its log, "
                "and resume from the last checkpoint"
            )
        return CsSystemError(f"the CS system at {self.address} failed: {code.name}: {details}")

    def close(self) -> None:
        """Ends the connection and all calls on it."""
        self._channel.close()
