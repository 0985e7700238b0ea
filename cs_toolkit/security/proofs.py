"""Proofs that a peer knows a secret, and keys derived from it; the secret itself is never sent.

Only the standard library is imported, because the agents of a job have nothing else.
"""

from __future__ import annotations

import hmac
import secrets

from cs_toolkit.network.frames import encode_json


def new_nonce() -> str:
    """Return a random text, to be used for one connection only."""
    return secrets.token_hex(16)


def prove(secret: str, side: str, *covered: str) -> str:
    """Return a proof that this side knows a secret, which is never sent itself.

    Args:
        secret: The common secret.
        side: Name of the side that proves, so that a peer cannot reflect a proof of the other side.
        covered: The data that the proof covers: the nonces of both sides, so that it cannot be replayed, and
            the content of messages that must not be changed.

    Returns:
        An HMAC-SHA256 in hexadecimal.
    """
    # As JSON, so that no other texts lead to the same bytes.
    content = encode_json([side, *covered])
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), content, "sha256").hex()


def derive_key(secret: str, use: str, *covered: str) -> bytes:
    """Derive a key of 32 bytes from a secret.

    Args:
        secret: The common secret.
        use: Name of the protocol, so that no key serves two of them.
        covered: The nonces of both sides, so that each connection has its own key, and the content of
            messages that must not be changed.
    """
    content = encode_json(["key", use, *covered])
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), content, "sha256")


def is_proof(given: object, expected: str) -> bool:
    """Return True if a peer has sent the expected proof, or secret; takes the same time if it has not."""
    # surrogatepass: JSON may contain lone surrogates, and a foreign peer's text must not raise here.
    return isinstance(given, str) and hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )
