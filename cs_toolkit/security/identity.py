"""Identities of users and systems, and the names of the files that prove them.

Command lines import this module at their start, which `cs_toolkit.security.tls` with `ssl` would slow down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

CERTS_VARIABLE = "CS_CERTS"
"""Environment variable with the directory of the credentials."""

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "cert.pem", "key.pem"

Role = Literal["user", "admin", "system"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True)
class Identity:
    """The subject of a certificate.

    Attributes:
        name: Common name: a user's name, or the first host of a system.
        role: Organizational unit; "user" if that is no role of ours, as in certificates of other authorities.
    """

    name: str
    role: Role

    @classmethod
    def of_subject(cls, common_name: str, units: Sequence[str]) -> Identity:
        """Return the identity of a subject with a common name and organizational units."""
        return cls(common_name, next((role for role in ROLES if role in units), "user"))

    @classmethod
    def of_peer(cls, certificate: Mapping[str, Any]) -> Identity:
        """Return the identity of a certificate in the form of `ssl.SSLSocket.getpeercert`."""
        pairs = [pair for names in certificate.get("subject", ()) for pair in names]
        names = [value for key, value in pairs if key == "commonName"]
        return cls.of_subject(
            names[0] if names else "", [value for key, value in pairs if key == "organizationalUnitName"]
        )

    def __str__(self) -> str:
        return f"{self.role} {self.name}"
