from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from cs_toolkit.security.identity import Identity
from cs_toolkit.security.tls import Credentials, CredentialsError, find_credentials
from tests.certificates import SiteCertificates

ROOT = Path(__file__).resolve().parents[4]


def test_only_the_standard_library_is_imported() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import cs_toolkit.security.tls_connection; "
        "print(*sys.modules)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "cs_toolkit.security.tls" in loaded
    packages = {name.partition(".")[0] for name in loaded}
    own = {"__main__", "cs_toolkit", sysconfig._get_sysconfigdata_name()}  # type: ignore[attr-defined]
    assert packages - sys.stdlib_module_names <= own


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    credentials = SiteCertificates(tmp_path).user
    (credentials.directory / name).unlink()
    with pytest.raises(CredentialsError, match=f"{name}: No such file.*cs_system certs issue"):
        Credentials(credentials.directory)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o601])
def test_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    credentials = SiteCertificates(tmp_path).user
    credentials.key.chmod(mode)
    with pytest.raises(CredentialsError, match=f"got mode {mode:04o}.*expected 0600: chmod 600"):
        Credentials(credentials.directory)


def test_damaged_files_and_foreign_keys_are_refused(tmp_path: Path) -> None:
    site = SiteCertificates(tmp_path)
    alice, cs1 = site.user, site.system
    alice.key.write_bytes(cs1.key.read_bytes())
    with pytest.raises(CredentialsError, match="cannot be used"):
        _ = Credentials(alice.directory).client_context
    cs1.ca.write_text("nothing")
    with pytest.raises(CredentialsError, match=r"ca\.pem: cannot be used"):
        _ = Credentials(cs1.directory).server_context


def test_credentials_are_found_by_argument_then_environment(tmp_path: Path) -> None:
    site = SiteCertificates(tmp_path)
    alice, root = site.user, site.admin
    environment = {"CS_CERTS": str(alice.directory)}
    assert find_credentials(None, {}) is None
    assert find_credentials(None, {"CS_CERTS": " "}) is None
    found = find_credentials(None, environment)
    assert found is not None
    assert found.directory == alice.directory
    found = find_credentials(root.directory, environment)
    assert found is not None
    assert found.directory == root.directory
    with pytest.raises(CredentialsError, match="No such file"):
        find_credentials(tmp_path / "nothing", environment)


def test_unknown_role_of_another_authority_is_a_user() -> None:
    subject = ((("organizationalUnitName", "IT"),), (("commonName", "eve"),))
    assert Identity.of_peer({"subject": subject}) == Identity("eve", "user")
    assert Identity.of_peer({}) == Identity("", "user")
