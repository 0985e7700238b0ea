"""X.509 certificates: the authority of a site, the certificates that it issues, and their content.

Keys are on the curve P-256, because gRPC's TLS library accepts no Ed25519 certificates by default. Only the
administrator of the site needs the private key of the authority.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cs_toolkit.errors import ToolkitError, UsageError
from cs_toolkit.files import replace_file
from cs_toolkit.security.identity import CA_FILE, CERTIFICATE_FILE, KEY_FILE, Identity, Role
from cs_toolkit.security.tls import digest, restrict

AUTHORITY_KEY_FILE = "ca-key.pem"
AUTHORITY_DAYS, CERTIFICATE_DAYS = 3650, 365
EXPIRY_NOTICE_DAYS = 30

# A certificate is valid from this time before it is issued, for machines whose clocks differ.
_CLOCK_DIFFERENCE = timedelta(minutes=10)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,61}[A-Za-z0-9])?")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")

# Errors of `cryptography` for damaged certificates.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
# Every system may be reached through the loopback of its machine.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class CertificateError(ToolkitError):
    """A certificate or key is missing, damaged, expired, or would be overwritten."""


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate.

    Attributes:
        identity: Its subject.
        site: Name of the site whose authority has issued it.
        hosts: Host names and IP addresses that it is valid for; empty for users.
        not_before, not_after: Period of validity.
        is_authority: True for a certificate that may sign others.
    """

    identity: Identity
    site: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    is_authority: bool

    def days_left(self, now: datetime | None = None) -> float:
        """Return the number of days until the certificate ends; negative after its end."""
        return (self.not_after - (now or datetime.now(UTC))) / timedelta(days=1)


def read_certificate(path: Path) -> Certificate:
    """Return the content of the first certificate in a PEM file.

    Raises:
        CertificateError: it cannot be read.
    """
    try:
        return _content(_load_certificate(path))
    except _UNREADABLE as error:
        raise CertificateError(f"{path}: cannot be parsed ({error}); expected a certificate in PEM") from None


def parse_certificate(pem: bytes) -> Certificate:
    """Return the content of a certificate that a TLS library has verified.

    Raises:
        CertificateError: it cannot be parsed.
    """
    try:
        return _content(x509.load_pem_x509_certificate(pem))
    except _UNREADABLE as error:
        raise CertificateError(f"the peer's certificate cannot be parsed ({error})") from None


def check_issuer(certificate: Path, authority: Path) -> str:
    """Return "" if a certificate was issued by an authority, else the reason why it was not."""
    issued, issuer = _load_certificate(certificate), _load_certificate(authority)
    try:
        issued.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE):
        return f"it was not issued by the authority in {authority}"
    return ""


class Authority:
    """The authority of a site, with its private key.

    Args:
        directory: Its directory, made by `create_authority`.

    Raises:
        CertificateError: its files are missing or damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._certificate = _load_certificate(directory / CA_FILE)
        self._key = _load_key(directory / AUTHORITY_KEY_FILE)
        if self._certificate.public_key() != self._key.public_key():
            raise CertificateError(
                f"{directory}: {AUTHORITY_KEY_FILE} is not the key of {CA_FILE}; restore both from a backup"
            )
        self.site = _content(self._certificate).site

    def issue(
        self,
        directory: Path,
        identity: Identity,
        hosts: Sequence[str] = (),
        days: int = CERTIFICATE_DAYS,
        overwrite: bool = False,
        now: datetime | None = None,
    ) -> Certificate:
        """Issue a certificate, and write it with its new key and the authority's certificate.

        Args:
            directory: Where the three files are written; created if it does not exist.
            identity: Its subject.
            hosts: Host names and IP addresses of a system.
            days: Period of validity.
            overwrite: Replace existing files.
            now: When its validity begins, by default now.

        Raises:
            UsageError: the name or a host is invalid.
            CertificateError: a file exists, the authority ends earlier, or a file cannot be written.
        """
        if not _NAME.fullmatch(identity.name):
            raise UsageError(
                f"the name {identity.name!r} cannot be in a certificate; expected at most 63 letters, digits "
                "and . _ @ + -, as in a login name"
            )
        names = _alternative_names(hosts)
        if identity.role == "system":
            names += [name for name in _alternative_names(_LOOPBACK) if name not in names]
        now = now or datetime.now(UTC)
        end = now + timedelta(days=days)
        if end > self._certificate.not_valid_after_utc:
            raise CertificateError(
                f"--days={days}: the authority in {self.directory} ends on "
                f"{self._certificate.not_valid_after_utc:%Y-%m-%d}; expected fewer days, or a new authority"
            )
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role == "system":
            # Only systems: a user must not be able to pose as the system to which others send their data.
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(self.site, identity.name, identity.role)
        builder = (
            _builder(subject, self._certificate.subject, key, now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        _write(
            directory,
            {CA_FILE: _pem(self._certificate), CERTIFICATE_FILE: _pem(certificate), KEY_FILE: _key_pem(key)},
            overwrite,
        )
        return _content(certificate)


def create_authority(
    directory: Path, site: str, days: int = AUTHORITY_DAYS, overwrite: bool = False
) -> Certificate:
    """Create the authority of a site: its certificate and its private key.

    Args:
        directory: Where both are written; created if it does not exist.
        site: Name of the site.
        days: Period of validity.
        overwrite: Replace existing files.

    Raises:
        UsageError: the name is invalid.
        CertificateError: a file exists, or cannot be written.
    """
    if not _NAME.fullmatch(site):
        raise UsageError(f"--name={site}: expected at most 63 letters, digits and . _ @ + -")
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = _subject(site, f"authority of {site}")
    certificate = (
        _builder(subject, subject, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(directory, {CA_FILE: _pem(certificate), AUTHORITY_KEY_FILE: _key_pem(key)}, overwrite)
    return _content(certificate)


def create_pinned_context(name: str) -> tuple[ssl.SSLContext, str]:
    """Return settings of a server for one job, and the digest by which its clients know its certificate.

    Clients need none: they prove that they belong to the job over the encrypted connection.
    """
    # Clients compare only the digest.
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = _builder(subject, subject, key, now, now + timedelta(days=AUTHORITY_DAYS)).sign(
        key, hashes.SHA256()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # as in `Credentials.server_context`
    restrict(context)
    # OpenSSL takes keys from files only; this one is in memory, and has no name.
    with os.fdopen(os.memfd_create("key"), "wb") as file:
        file.write(_pem(certificate) + _key_pem(key))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, digest(certificate.public_bytes(serialization.Encoding.DER))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - _CLOCK_DIFFERENCE)
        .not_valid_after(end)
    )


def _alternative_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for host in hosts:
        name: x509.GeneralName
        try:
            name = x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            # A name of only digits and dots is a mistyped IP address.
            if not _HOST_NAME.fullmatch(host) or len(host) > 253 or re.fullmatch(r"[0-9.]+", host):
                raise UsageError(f"--system: {host!r} is neither a host name nor an IP address") from None
            name = x509.DNSName(host)
        if name not in names:
            names.append(name)
    return names


def _subject(site: str, name: str, role: Role | None = None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, site)]
    if role is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role))
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _content(certificate: x509.Certificate) -> Certificate:
    def values(oid: x509.ObjectIdentifier) -> list[str]:
        return [str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)]

    hosts: tuple[str, ...] = ()
    is_authority = False
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            hosts = (
                *extension.value.get_values_for_type(x509.DNSName),
                *map(str, extension.value.get_values_for_type(x509.IPAddress)),
            )
        elif isinstance(extension.value, x509.BasicConstraints):
            is_authority = extension.value.ca
    names = values(NameOID.COMMON_NAME)
    return Certificate(
        Identity.of_subject(names[0] if names else "", values(NameOID.ORGANIZATIONAL_UNIT_NAME)),
        next(iter(values(NameOID.ORGANIZATION_NAME)), ""),
        hosts,
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
        is_authority,
    )


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise CertificateError(f"{path}: {error.strerror}; expected a certificate in PEM") from None
    except _UNREADABLE:
        raise CertificateError(f"{path}: cannot be parsed; expected a certificate in PEM") from None


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise CertificateError(
            f"{path}: {error.strerror}; expected the key of the authority, which `cs_system certs init` makes"
        ) from None
    except (TypeError, ValueError):
        raise CertificateError(f"{path}: cannot be parsed; expected a private key without password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(f"{path}: got another kind of key, expected one on an elliptic curve")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(directory: Path, files: dict[str, bytes], overwrite: bool) -> None:
    for name in files:
        if (directory / name).exists() and not overwrite:
            raise CertificateError(f"{directory / name} exists; give --force to replace it")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, data in files.items():
            is_key = name in (KEY_FILE, AUTHORITY_KEY_FILE)
            replace_file(directory / name, data, 0o600 if is_key else 0o644)
    except OSError as error:
        raise CertificateError(
            f"{directory}: cannot be written ({error.strerror}); expected a writable directory"
        ) from None
