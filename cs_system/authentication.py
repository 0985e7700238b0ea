"""Proofs of a job's secret on calls of the control plane, and keyed digests of the tensors in them.

The secret is never sent in clear: the chief seals it to the system's process (`security.sealing`).
From then on, the metadata of every call of the chief or a worker contain a nonce of the client, a number that
counts the calls with this nonce, and an HMAC. It covers both, the nonce of the system's process, the name of
the call, the reservation, and the request unless that is a stream. The system accepts each pair of nonce and
number once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from cs_system.errors import CallRefusedError, TensorDamagedError
from cs_system.proto import cs_system_pb2 as pb
from cs_toolkit.network.connection import Buffer
from cs_toolkit.network.frames import encode_json
from cs_toolkit.security.proofs import derive_key, is_proof, new_nonce, prove
from cs_toolkit.security.sealing import FrameKey

# Number of client nonces that are remembered. Each run of each worker uses one, which takes 0.2 KB.
MAX_NONCES = 1 << 16

# Calls of several threads may arrive in another order than they were numbered; not by more than this.
_WINDOW = 1024

_MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class Call:
    """A call whose caller knows the job's secret.

    Attributes:
        token: The job's secret.
        system_nonce: Nonce of the system's process.
        nonce: Nonce of the client.
        number: Number of the call, unique for the nonce.
    """

    token: str = field(repr=False)
    system_nonce: str
    nonce: str
    number: int

    def prove(self, rpc: str, reservation: str, request: Any) -> str:
        """Return the proof of the caller."""
        digest = ""
        if isinstance(request, Message):
            digest = hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
        return prove(self.token, "caller", *self._covered(), rpc, reservation, digest)

    def prove_answer(self, answer: Message) -> str:
        """Return the proof that an answer comes from the system, which knows the secret too."""
        digest = hashlib.sha256(answer.SerializeToString(deterministic=True)).hexdigest()
        return prove(self.token, "system", *self._covered(), digest)

    def requested_tensors(self) -> TensorTags:
        """Return the digests of the tensors that the client sends."""
        return TensorTags(self._tensor_key(), 0)

    def answered_tensors(self) -> TensorTags:
        """Return the digests of the tensors that the system sends."""
        return TensorTags(self._tensor_key(), 1)

    def _tensor_key(self) -> FrameKey:
        return FrameKey(derive_key(self.token, "tensors", *self._covered()))

    def _covered(self) -> tuple[str, str, str]:
        return self.system_nonce, self.nonce, str(self.number)


class TensorTags:
    """The digests of a sequence of chunks of tensors, in the order in which they are sent.

    The elements of a chunk are an argument, because each access of `chunk.data` copies them.

    Args:
        key: Key of the call.
        stream: Their direction.
    """

    def __init__(self, key: FrameKey, stream: int) -> None:
        self._key, self._stream = key, stream
        self._numbers = itertools.count()

    def add(self, chunk: pb.TensorChunk, data: Buffer) -> None:
        """Add its digest to the next chunk."""
        chunk.tag = self._key.tag(self._stream, next(self._numbers), _head(chunk, data), [data])

    def check(self, chunk: pb.TensorChunk, data: Buffer) -> None:
        """Check the next chunk.

        Raises:
            TensorDamagedError: it is not the one that was sent.
        """
        if not self._key.is_tag(chunk.tag, self._stream, next(self._numbers), _head(chunk, data), [data]):
            raise TensorDamagedError.of(chunk.name)


def _head(chunk: pb.TensorChunk, data: Buffer) -> bytes:
    return encode_json([chunk.name, chunk.dtype, list(chunk.shape), chunk.offset, len(data)])


class CallSigner:
    """The client's side: numbers calls and proves that they come from the job.

    Args:
        token: The job's secret.
        system_nonce: Nonce of the system's process.
    """

    def __init__(self, token: str, system_nonce: str) -> None:
        self._token, self._system_nonce, self._nonce = token, system_nonce, new_nonce()
        self._numbers = itertools.count()

    def sign(self, rpc: str, reservation: str, request: Any) -> tuple[Call, str]:
        """Return the next call, and the text for its metadata."""
        call = Call(self._token, self._system_nonce, self._nonce, next(self._numbers))
        return call, f"{call.nonce}.{call.number}.{call.prove(rpc, reservation, request)}"


@dataclass(slots=True)
class _Window:
    """The numbers of calls with one nonce that have come."""

    highest: int = -1
    seen: int = 0
    """Bit k is set if `highest - k` has come."""

    def add(self, number: int) -> bool:
        """Return True for a number that comes for the first time."""
        if number > self.highest:
            shift = min(number - self.highest, _WINDOW)
            self.seen = (self.seen << shift | 1) & ((1 << _WINDOW) - 1)
            self.highest = number
            return True
        bit = 1 << self.highest - number
        if self.highest - number >= _WINDOW or self.seen & bit:
            return False
        self.seen |= bit
        return True


class CallVerifier:
    """The system's side: accepts each call of a job once, as long as it remembers the nonce of the client.

    Args:
        token: The job's secret.
        system_nonce: Nonce of the system's process.
    """

    def __init__(self, token: str, system_nonce: str) -> None:
        self._token, self._system_nonce = token, system_nonce
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    @property
    def nonces(self) -> int:
        """Number of client nonces that are remembered."""
        return len(self._windows)

    def read(self, text: str) -> Call:
        """Return the call that a text in the metadata states, without any check."""
        nonce, number, _ = _split(text)
        return Call(self._token, self._system_nonce, nonce, number)

    def verify(self, text: str, rpc: str, reservation: str, request: Any) -> Call:
        """Return the call that a text in the metadata proves.

        Raises:
            CallRefusedError: it proves none, or one that has come before.
        """
        call, given = self.read(text), _split(text)[2]
        if not is_proof(given, call.prove(rpc, reservation, request)):
            raise CallRefusedError.of(rpc)
        window = self._windows.setdefault(call.nonce, _Window())
        self._windows.move_to_end(call.nonce)
        if len(self._windows) > MAX_NONCES:
            self._windows.popitem(last=False)
        if not window.add(call.number):
            raise CallRefusedError.of(rpc)
        return call


def _split(text: str) -> tuple[str, int, str]:
    nonce, _, rest = text.partition(".")
    number, _, given = rest.partition(".")
    is_number = number.isascii() and number.isdecimal() and len(number) < 20 and int(number) < _MAX_NUMBER
    return (nonce, int(number), given) if is_number else (nonce, 0, "")
