"""Connections to the launcher's port: those of the job's agents are admitted, others are closed."""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from cs_toolkit.security.proofs import is_proof, new_nonce
from csrun.agent.connection import Connection
from csrun.agent.protocol import MAX_AGENT_HEAD_BYTES, Challenge, Hello, Message, agent_proof

# Connections that have not yet proved that they belong to the job, in addition to one for each task. When one
# more comes, the oldest is dropped: an agent proves it within milliseconds, so that idle peers cannot keep
# it out.
MAX_UNAUTHENTICATED_PEERS = 64
HANDSHAKE_LIMIT_S = 30.0
# Pause after a failed accept: without file descriptors, the listener stays ready and every accept fails.
ACCEPT_PAUSE_S = 0.5


@dataclass(frozen=True)
class AdmittedAgent:
    """A connection that has proved that it is the agent of a task.

    Attributes:
        connection: registered at the selector.
        hello: its introduction.
        nonce: random number of the launcher, for this connection.
        messages: those that have arrived after the introduction.
    """

    connection: Connection
    hello: Hello
    nonce: str
    messages: Sequence[Message]


class Admission:
    """Accepts connections, and finds the agents of the job among them; nothing blocks.

    Args:
        listener: the listening socket, non-blocking.
        context: TLS settings of the launcher.
        token: secret of the job.
        tasks: number of tasks.
        peer_timeout_s: silence after which the machine of a peer counts as lost.
        selector: listener and connections are registered here.
        say: prints a line for the user.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        token: str,
        tasks: int,
        peer_timeout_s: float,
        selector: selectors.BaseSelector,
        say: Callable[[str], object],
    ) -> None:
        self._listener, self._context, self._token = listener, context, token
        self._tasks, self._peer_timeout_s = tasks, peer_timeout_s
        self._selector, self._say = selector, say
        selector.register(listener, selectors.EVENT_READ)
        # Monotonic time at which the paused listener continues; None if it is not paused.
        self._continue_at_s: float | None = None
        self._has_failed = self._has_refused = False
        # In the order of their arrival: nonce, and the time at which the peer is dropped.
        self._unauthenticated: dict[Connection, tuple[str, float]] = {}

    def poll(self, now_s: float, known: Collection[int]) -> Iterator[AdmittedAgent]:
        """Yield the agents that have proved that they belong to the job since the last call.

        Args:
            now_s: monotonic time.
            known: ranks of the agents that were admitted before.
        """
        # Before others are accepted, for which the oldest may be dropped.
        for connection, (nonce, limit_s) in list(self._unauthenticated.items()):
            messages = connection.receive()
            hello = messages[0] if messages else None
            if isinstance(hello, Hello) and hello.rank not in known and self._is_authentic(hello, nonce):
                del self._unauthenticated[connection]
                yield AdmittedAgent(connection, hello, nonce, messages[1:])
            elif messages or not connection.is_open() or now_s > limit_s:
                if connection.error and not self._has_refused:  # once, as anybody can cause it
                    self._has_refused = True
                    self._say(f"a connection to the port of this job was refused: {connection.error}")
                self._drop(connection)
        self._accept(now_s)

    def _is_authentic(self, hello: Hello, nonce: str) -> bool:
        return 0 <= hello.rank < self._tasks and is_proof(hello.proof, agent_proof(self._token, nonce, hello))

    def _accept(self, now_s: float) -> None:
        if self._continue_at_s is not None:
            if now_s < self._continue_at_s:
                return
            self._continue_at_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        for _ in range(self._tasks + MAX_UNAUTHENTICATED_PEERS):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):  # no connection is waiting
                return
            except OSError as error:
                self._pause(now_s, error)
                return
            with suppress(OSError):  # the peer has disconnected already
                accepted.setblocking(False)
                encrypted = self._context.wrap_socket(
                    accepted, server_side=True, do_handshake_on_connect=False
                )
                connection = Connection(encrypted, MAX_AGENT_HEAD_BYTES)
                connection.limit_silence(self._peer_timeout_s)
                nonce = new_nonce()
                self._unauthenticated[connection] = nonce, now_s + HANDSHAKE_LIMIT_S
                self._selector.register(connection, selectors.EVENT_READ)
                connection.send(Challenge(nonce))
                if len(self._unauthenticated) > self._tasks + MAX_UNAUTHENTICATED_PEERS:
                    self._drop(next(iter(self._unauthenticated)))

    def _pause(self, now_s: float, error: OSError) -> None:
        """Accept nothing for a moment, in which descriptors or memory may become free."""
        self._continue_at_s = now_s + ACCEPT_PAUSE_S
        self._selector.unregister(self._listener)
        if not self._has_failed:
            self._has_failed = True
            self._say(
                f"cannot accept connections of tasks: {error.strerror}; they are accepted as soon as that is "
                f"possible. Each of the {self._tasks} tasks needs an open file here (`ulimit -n`)"
            )

    def _drop(self, connection: Connection) -> None:
        del self._unauthenticated[connection]
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close the connections of peers that have proved nothing."""
        for connection in list(self._unauthenticated):
            self._drop(connection)
