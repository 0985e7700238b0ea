from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from cs_system.commands import main
from cs_toolkit.errors import UsageError
from cs_toolkit.security.certificates import (
    Authority,
    CertificateError,
    check_issuer,
    create_authority,
    read_certificate,
)
from cs_toolkit.security.identity import Identity
from tests.certificates import SiteCertificates


def modes(directory: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir() if path.is_file()}


def test_authority_and_certificate_are_written_with_the_right_modes(tmp_path: Path) -> None:
    create_authority(tmp_path / "ca", "lab")
    Authority(tmp_path / "ca").issue(tmp_path / "alice", Identity("alice", "user"))
    assert modes(tmp_path / "ca") == {"ca.pem": "0o644", "ca-key.pem": "0o600"}
    assert modes(tmp_path / "alice") == {"ca.pem": "0o644", "cert.pem": "0o644", "key.pem": "0o600"}


def test_certificate_of_a_system_has_its_hosts_and_loopback(tmp_path: Path) -> None:
    create_authority(tmp_path, "lab")
    hosts = ["cs1.lab.example", "10.0.0.7", "[fd00::7]"]
    issued = Authority(tmp_path).issue(tmp_path / "cs1", Identity("cs1", "system"), hosts)
    assert set(issued.hosts) == {
        "cs1.lab.example",
        "10.0.0.7",
        "fd00::7",
        "localhost",
        "127.0.0.1",
        "::1",
    }
    assert issued == read_certificate(tmp_path / "cs1" / "cert.pem")
    assert (issued.identity, issued.site, issued.is_authority) == (Identity("cs1", "system"), "lab", False)
    assert issued.days_left(datetime.now(UTC)) == pytest.approx(365, abs=0.01)


@pytest.mark.parametrize("host", ["", "10.0.0", "a b", "-x", "a" * 64, "http://cs1"])
def test_invalid_host_is_refused(tmp_path: Path, host: str) -> None:
    create_authority(tmp_path, "lab")
    with pytest.raises(UsageError, match="neither a host name nor an IP address"):
        Authority(tmp_path).issue(tmp_path / "cs1", Identity("cs1", "system"), [host])
    assert not (tmp_path / "cs1").exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", "ü", "a" * 64, "a\n"])
def test_invalid_name_is_refused(tmp_path: Path, name: str) -> None:
    create_authority(tmp_path, "lab")
    with pytest.raises(UsageError, match="cannot be in a certificate"):
        Authority(tmp_path).issue(tmp_path / "x", Identity(name, "user"))


def test_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    create_authority(tmp_path, "lab", days=30)
    with pytest.raises(CertificateError, match=r"the authority in .* ends on"):
        Authority(tmp_path).issue(tmp_path / "alice", Identity("alice", "user"), days=31)


def test_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    create_authority(tmp_path / "a", "a")
    create_authority(tmp_path / "b", "b")
    (tmp_path / "b" / "ca-key.pem").replace(tmp_path / "a" / "ca-key.pem")
    with pytest.raises(CertificateError, match="is not the key of"):
        Authority(tmp_path / "a")


def test_issuer_is_checked(tmp_path: Path) -> None:
    alice = SiteCertificates(tmp_path / "a").user
    other = SiteCertificates(tmp_path / "b").user
    assert check_issuer(alice.certificate, alice.ca) == ""
    assert "was not issued by the authority" in check_issuer(alice.certificate, other.ca)


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_damaged_certificate_is_an_expected_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cert.pem").write_bytes(content)
    with pytest.raises(CertificateError, match="cannot be parsed"):
        read_certificate(tmp_path / "cert.pem")


# -- cs_system certs


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["certs", *map(str, arguments)])
    return result.exit_code, result.output


def test_commands_set_up_a_site(tmp_path: Path) -> None:
    ca = tmp_path / "ca"
    assert run("init", ca, "--name=lab")[0] == 0
    assert run("issue", ca, "--system=cs1.lab.example,10.0.0.7")[0] == 0
    assert run("issue", ca, "--user=alice", "--admin", "--days=90")[0] == 0
    code, output = run("show", ca / "alice", "--json")
    shown = json.loads(output)
    assert (code, shown["name"], shown["role"], shown["days_left"]) == (0, "alice", "admin", 89)
    code, output = run("show", ca / "cs1.lab.example")
    assert code == 0
    assert "system cs1.lab.example of the site lab" in output
    assert "cs1.lab.example, localhost, 10.0.0.7" in output
    assert "authority of the site lab" in run("show", ca)[1]


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    for arguments in (["init", tmp_path], ["issue", tmp_path, "--user=alice"]):
        assert run(*arguments)[0] == 0
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
        code, output = run(*arguments)
        assert code == 1
        assert "exists; give --force to replace it" in output
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    assert run("issue", tmp_path, "--user=alice", "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected either --system"),
        (("--user=a", "--system=b"), "expected either --system"),
        (("--admin", "--system=b"), "--admin: expected with --user"),
        (("--system=,",), "expected at least one host"),
    ],
)
def test_contradictory_options_are_usage_errors(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    create_authority(tmp_path, "lab")
    code, output = run("issue", tmp_path, *arguments)
    assert code == 2
    assert message in output


def test_show_reports_certificates_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = SiteCertificates(tmp_path)
    expired = site.issue("bob", "user", expired=True)
    monkeypatch.setenv("CS_CERTS", str(expired.directory))
    code, output = run("show")
    assert code == 1
    assert "it has expired" in output
    monkeypatch.delenv("CS_CERTS")
    code, output = run("show")
    assert code == 2
    assert "set CS_CERTS" in output
