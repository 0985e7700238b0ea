"""Addresses of CS systems, in the forms that users and existing programs use."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from cs_system.errors import BadAddressError

DEFAULT_PORT = 9000

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")


@dataclass(frozen=True)
class SystemAddress:
    """Host (name or IP without brackets) and port of a control plane."""

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def host_port(host: str, port: int) -> str:
    """Format `HOST:PORT`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches a server on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(value: str) -> SystemAddress:
    """Parse `IP`, `IP:PORT` or `IP:PORT:9000`; a host name may replace the IP, and IPv6 needs brackets.

    Raises:
        BadAddressError: any other form.
    """
    # Existing programs append `:9000` to any address they are given, so a second port is ignored.
    host, ports = _split(value)
    if len(ports) > 2:
        raise BadAddressError(value, f"{len(ports)} ports")
    for text in ports:
        if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
            raise BadAddressError(value, f"'{text}' is not a port number (1 to 65535)")
    return SystemAddress(host, int(ports[0]) if ports else DEFAULT_PORT)


def parse_addresses(value: str) -> tuple[SystemAddress, ...]:
    """Parse addresses that are separated by commas: one system, or a pool.

    Raises:
        BadAddressError: one of them has another form.
    """
    # A program that appends `:9000` to its argument appends it to the last address, which accepts it.
    return tuple(dict.fromkeys(parse_address(part.strip()) for part in value.split(",")))


def _split(value: str) -> tuple[str, list[str]]:
    if not value.strip():
        raise BadAddressError(value, "empty")
    if "://" in value:
        raise BadAddressError(value, f"starts with {value.partition('://')[0]}://; leave that out")
    if value.startswith("["):
        inside, bracket, rest = value[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadAddressError(value, "the brackets of an IPv6 address do not close before the port")
        if not _is_ipv6(inside):
            raise BadAddressError(value, f"'{inside}' is not an IPv6 address")
        return inside, rest[1:].split(":") if rest else []
    host, *ports = value.split(":")
    if _is_ipv6(value):
        raise BadAddressError(value, f"put the IPv6 address in brackets: [{value}]:{DEFAULT_PORT}")
    if not host:
        raise BadAddressError(value, "no host before the port")
    if host.isdigit():
        raise BadAddressError(value, f"'{host}' is a number, not a host")
    # A name of only digits and dots is a mistyped IPv4 address; a resolver would look it up for long.
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise BadAddressError(value, f"'{host}' is not an IPv4 address") from None
    elif len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise BadAddressError(value, f"'{host}' is neither an IP nor a host name")
    return host, ports


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
