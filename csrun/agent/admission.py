"""Connections to the launcher's port: those of the job's agents are admitted, others are closed."""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Collection, Iterator, Sequence
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
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        token: str,
        tasks: int,
        peer_timeout_s: float,
        selector: selectors.BaseSelector,
    ) -> None:
        self._listener, self._context, self._token = listener, context, token
        self._tasks, self._peer_timeout_s = tasks, peer_timeout_s
        self._selector = selector
        selector.register(listener, selectors.EVENT_READ)
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
                self._drop(connection)
        self._accept(now_s)

    def _is_authentic(self, hello: Hello, nonce: str) -> bool:
        return 0 <= hello.rank < self._tasks and is_proof(hello.proof, agent_proof(self._token, nonce, hello))

    def _accept(self, now_s: float) -> None:
        with suppress(OSError):  # no connection is waiting
            for _ in range(self._tasks + MAX_UNAUTHENTICATED_PEERS):
                accepted, _ = self._listener.accept()
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

    def _drop(self, connection: Connection) -> None:
        del self._unauthenticated[connection]
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close the connections of peers that have proved nothing."""
        for connection in list(self._unauthenticated):
            self._drop(connection)
