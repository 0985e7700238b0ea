"""Keys of a connection: digests that only holders of a secret can compute, and secrets sealed to one reader.

Both sides derive a `FrameKey` from their common secret and the nonces of both (`proofs.derive_key`). Its tags
are AES-GMAC. Agents of csrun must not import this module, which needs the package `cryptography`.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cs_toolkit.errors import ToolkitError
from cs_toolkit.network.connection import Buffer

TAG_BYTES = 16

# Nonce of AES-GMAC, 12 bytes: stream of the connection, part of the frame, number of the frame.
_NONCE = struct.Struct("<BBHQ")

# One call authenticates fewer than 2 GiB, an `int` of OpenSSL.
_MAX_PART_BYTES = 1 << 30

# A smaller part is copied: that costs less than a call of OpenSSL.
_COPIED_BYTES = 4096

_MAX_PARTS = 1 << 16
_PUBLIC_KEY_BYTES = 32


class SealError(ToolkitError):
    """A sealed secret was changed in transit, or was sealed to another reader."""


class FrameKey:
    """Computes and checks the tags of one connection.

    A stream is one kind of frames in one direction. The pair of stream and number must occur only once under
    a key: two different frames with the same pair would reveal it.

    Args:
        key: 32 bytes, from `proofs.derive_key`.
    """

    # The one-shot AESGCM costs 0.5 us a part, a `Cipher` with a call for each part 4.7 us a frame; both do 15
    # to 30 GB/s (two loaded cores). Large parts have their own tags, which are authenticated together with
    # the head and the small parts: no large part is copied, and a changed one changes the tag of the frame.

    def __init__(self, key: bytes) -> None:
        self._gcm = AESGCM(key)

    def tag(self, stream: int, number: int, head: bytes, parts: Sequence[Buffer] = ()) -> bytes:
        """Return the tag of a frame.

        Args:
            stream: 0 to 255.
            number: Number of the frame in its stream.
            head: Its first bytes. Together with what both sides know they determine the sizes of the parts.
            parts: The rest of it; memoryviews of single bytes.
        """
        if not parts:
            return self._gcm.encrypt(_NONCE.pack(stream, 0, 0, number), b"", head)
        pieces: list[Buffer] = [head]
        tags = 0
        for part in parts:
            if len(part) <= _COPIED_BYTES:
                pieces.append(part)
                continue
            for start in range(0, len(part), _MAX_PART_BYTES):
                if (tags := tags + 1) == _MAX_PARTS:
                    raise ValueError(f"got more than {_MAX_PARTS - 1} large parts of a frame")
                large = part if len(part) <= _MAX_PART_BYTES else memoryview(part)[start:][:_MAX_PART_BYTES]
                pieces.append(self._gcm.encrypt(_NONCE.pack(stream, 1, tags, number), b"", large))
        return self._gcm.encrypt(_NONCE.pack(stream, 0, 0, number), b"", b"".join(pieces))

    def is_tag(
        self, given: bytes, stream: int, number: int, head: bytes, parts: Sequence[Buffer] = ()
    ) -> bool:
        """Return True if `given` is the tag of a frame; takes the same time if it is not."""
        return hmac.compare_digest(given, self.tag(stream, number, head, parts))


class SealingKey:
    """A key pair of this process: with the public key, others seal a secret that only it can open.

    Attributes:
        public: The public key, 32 bytes.
    """

    # Protects against eavesdroppers only: an attacker who replaces the public key in transit can read the
    # secret. TLS prevents that.

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def open(self, sealed: bytes) -> bytes:
        """Return the secret that `seal` has sealed.

        Raises:
            SealError: it was changed in transit, or is for another process.
        """
        theirs, rest = sealed[:_PUBLIC_KEY_BYTES], sealed[_PUBLIC_KEY_BYTES:]
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(theirs))
            return _cipher(shared, theirs, self.public).decrypt(bytes(12), rest, None)
        except (ValueError, InvalidTag):
            raise SealError("a sealed secret was changed in transit, or is for another process") from None


def seal(secret: bytes, public_key: bytes) -> bytes:
    """Seal a secret to the process that has sent its public key.

    Raises:
        SealError: the public key is none.
    """
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError:
        raise SealError(f"got {len(public_key)} bytes, expected a public key of X25519") from None
    # The key is used once, so the nonce may be constant.
    return public + _cipher(shared, public, public_key).encrypt(bytes(12), secret, None)


def _cipher(shared: bytes, sender: bytes, reader: bytes) -> ChaCha20Poly1305:
    info = b"cs-toolkit sealed secret" + sender + reader
    return ChaCha20Poly1305(HKDF(hashes.SHA256(), 32, None, info).derive(shared))


def encrypt(text: str, key: bytes) -> str:
    """Encrypt a text with a common key of 32 bytes; return hexadecimal digits."""
    nonce = os.urandom(12)
    return (nonce + ChaCha20Poly1305(key).encrypt(nonce, text.encode(), None)).hex()


def decrypt(encrypted: str, key: bytes) -> str:
    """Return the text that `encrypt` has encrypted.

    Raises:
        SealError: it was changed in transit, or encrypted with another key.
    """
    try:
        data = bytes.fromhex(encrypted)
        return ChaCha20Poly1305(key).decrypt(data[:12], data[12:], None).decode()
    except (ValueError, InvalidTag):
        raise SealError("an encrypted text was changed in transit, or has another key") from None
