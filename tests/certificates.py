"""Certificates of a site, for tests of connections with TLS."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cs_toolkit.security.certificates import Authority, create_authority
from cs_toolkit.security.identity import Identity, Role
from cs_toolkit.security.tls import Credentials


class SiteCertificates:
    """A site with an authority.

    Args:
        directory: For all its files.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        create_authority(directory, "test-site")
        self._authority = Authority(directory)

    def issue(
        self,
        name: str,
        role: Role,
        hosts: Sequence[str] = (),
        *,
        expired: bool = False,
        early: bool = False,
    ) -> Credentials:
        """Issue a certificate, in the directory of its name."""
        days = -3 if expired else 1 if early else 0
        now = datetime.now(UTC) + timedelta(days=days) if days else None
        target = self.directory / name
        self._authority.issue(target, Identity(name, role), hosts, 2, True, now)
        return Credentials(target)

    @property
    def system(self) -> Credentials:
        """Those of a CS system, valid for the loopback addresses."""
        return self.issue("cs1", "system")

    @property
    def user(self) -> Credentials:
        """Those of a user."""
        return self.issue("alice", "user")

    @property
    def admin(self) -> Credentials:
        """Those of an administrator."""
        return self.issue("root", "admin")
