"""Heartbeats of a client: both sides see that the other one answers, and log its silence."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from cs_system.errors import ReservationLostError, duration_text
from cs_system.proto import cs_system_pb2 as pb
from cs_system.transport import (
    Metadata,
    client_metadata,
    describe_silence,
    error_from_metadata,
    has_stalled,
)
from cs_toolkit.network.liveness import SilenceTimer

log = logging.getLogger("cs_system.client")

_INTERVAL_S = 2.0
_END_TIMEOUT_S = 5.0
# A chief is warned when it has been idle for this part of the time after which it loses the system.
_WARN_AT = 0.8


class Heartbeats:
    """Sends heartbeats in a thread until `close`.

    gRPC notices a lost connection. This thread logs the silence before that, and ends a connection whose
    calls have stalled.

    Args:
        beat: The call, `CsSystemStub.Heartbeat`.
        name: Name of the system in messages.
        peer_timeout_s: Silence after which it counts as lost.
        end_connection: Ends the connection and all its calls.

    Attributes:
        has_stalled: True once the connection was ended because its calls had stalled.
        sign: Returns the metadata of a call; a holder of the system proves who it is.
    """

    def __init__(
        self, beat: Any, name: str, peer_timeout_s: float, end_connection: Callable[[], None]
    ) -> None:
        self.sign: Callable[[pb.HeartbeatRequest], Metadata] = lambda _: client_metadata()
        self.has_stalled = False
        self._beat = beat
        self._end_connection = end_connection
        self._name = name
        self._silence = SilenceTimer(peer_timeout_s, time.monotonic())
        self._interval_s = min(_INTERVAL_S, peer_timeout_s / 6)
        self._activities: list[str] = []
        self._is_warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._thread.start()

    @property
    def silence_text(self) -> str | None:
        """Say for how long the system has been silent, if it was for long."""
        silence_s = self._silence.silence_s
        if silence_s < self._silence.line_every_s:
            return None
        text = f"it has not answered for {silence_s:.0f} s"
        return f"{text}, except for pings" if self.has_stalled else text

    @contextlib.contextmanager
    def activity(self, text: str) -> Iterator[None]:
        """Name work of the body that needs no call; it keeps a reservation from being released as idle."""
        self._activities.append(text)
        try:
            yield
        finally:
            self._activities.remove(text)

    def close(self) -> None:
        """Send no more heartbeats; a second call does nothing."""
        self._ended.set()
        self._thread.join(_END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            request = pb.HeartbeatRequest(activity=self._activities[-1] if self._activities else "")
            # gRPC raises ValueError for a channel that has been closed.
            with contextlib.suppress(ValueError):
                call = self._beat.future(request, metadata=self.sign(request))
                if self._wait_for(call):
                    self._ended.wait(self._interval_s)
                    continue
                call.cancel()
            return

    def _wait_for(self, call: Any) -> bool:
        """Wait for an answer; return False if there will be no further ones."""
        while not self._ended.is_set():
            try:
                reply = call.result(timeout=self._silence.check_every_s)
            except grpc.FutureTimeoutError:
                if self._silence.check(time.monotonic()):
                    log.warning("%s", describe_silence(self._name, self._silence))
                if has_stalled(self._silence):
                    self.has_stalled = True
                    self._end_connection()
                    return False
            except grpc.FutureCancelledError:
                return False
            except grpc.RpcError as error:
                # The end of the connection is reported by the calls of the user's thread. They would report
                # the end of the reservation only when the chief uses the system again.
                known = error_from_metadata(error.trailing_metadata())
                if isinstance(known, ReservationLostError) and not self._ended.is_set():
                    log.warning("%s", known)
                return False
            else:
                silence_s = self._silence.heard(time.monotonic())
                if silence_s is not None:
                    log.info("%s answers again after %.0f s", self._name, silence_s)
                self._warn_idle(reply)
                return True
        return False

    def _warn_idle(self, reply: pb.HeartbeatReply) -> None:
        is_idle = bool(reply.idle_release_s) and reply.idle_s >= _WARN_AT * reply.idle_release_s
        if is_idle and not self._is_warned:
            log.warning(
                "this program has not used %s for %s, which releases the reservation after %s without any "
                "step or call",
                *(self._name, duration_text(reply.idle_s), duration_text(reply.idle_release_s)),
            )
        self._is_warned = is_idle
