import socket
import urllib.request
from pathlib import Path

import pytest

from cs_system.address import SystemAddress, parse_address
from cs_system.errors import BadAddressError
from cs_system.server.process import advertised_host
from tests.systems import running_system


@pytest.mark.parametrize(
    ("value", "host", "port"),
    [
        ("10.0.0.5", "10.0.0.5", 9000),
        ("10.0.0.5:9123", "10.0.0.5", 9123),
        ("127.0.0.1:45001:9000", "127.0.0.1", 45001),
        ("127.0.0.1:9000:9000", "127.0.0.1", 9000),
        ("cs-1.site.example", "cs-1.site.example", 9000),
        ("cs_node:9000", "cs_node", 9000),
        ("[::1]", "::1", 9000),
        ("[::1]:9123", "::1", 9123),
        ("[fe80::1]:9123:9000", "fe80::1", 9123),
    ],
)
def test_forms_that_programs_use(value, host, port):
    assert parse_address(value) == SystemAddress(host, port)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("9000", "'9000' is a number, not a host"),
        (":9000", "no host before the port"),
        ("127.0.0.1:", "'' is not a port number (1 to 65535)"),
        ("127.0.0.1:http", "'http' is not a port number (1 to 65535)"),
        ("127.0.0.1:0", "'0' is not a port number (1 to 65535)"),
        ("127.0.0.1:65536", "'65536' is not a port number (1 to 65535)"),
        ("127.0.0.1:9000:", "'' is not a port number (1 to 65535)"),
        ("127.0.0.1:1:2:3", "3 ports"),
        ("127.0.0.300:9000", "'127.0.0.300' is not an IPv4 address"),
        ("127.0.1", "'127.0.1' is not an IPv4 address"),
        ("http://10.0.0.5:9000", "starts with http://; leave that out"),
        ("fe80::1", "put the IPv6 address in brackets: [fe80::1]:9000"),
        ("[::1", "the brackets of an IPv6 address do not close before the port"),
        ("[::1]9000", "the brackets of an IPv6 address do not close before the port"),
        ("[10.0.0.5]:9000", "'10.0.0.5' is not an IPv6 address"),
        ("two words", "'two words' is neither an IP nor a host name"),
        ("host;rm", "'host;rm' is neither an IP nor a host name"),
        ("a..b", "'a..b' is neither an IP nor a host name"),
    ],
)
def test_other_forms_are_refused_by_name(value, fault):
    with pytest.raises(BadAddressError) as refused:
        parse_address(value)
    assert str(refused.value) == (
        f"cs_ip={value!r}: {fault}; expected IP, IP:PORT or IP:PORT:9000 "
        "(examples: 10.0.0.5, 127.0.0.1:9000, [::1]:9000)"
    )
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("value", ["10.0.0.5:9123", "[::1]:9123"])
def test_text_of_an_address_reads_back(value):
    assert str(parse_address(value)) == value


@pytest.mark.parametrize(
    ("host", "advertise", "known"),
    [
        ("127.0.0.1", "", "127.0.0.1"),
        ("10.0.0.5", "", "10.0.0.5"),
        ("0.0.0.0", "cs.lab", "cs.lab"),
        ("0.0.0.0", "", "node7"),
        ("::", "", "node7"),
    ],
)
def test_the_printed_address_can_be_used_from_another_node(
    host: str, advertise: str, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: [])
    assert advertised_host(host, advertise) == known


def test_a_host_whose_name_nobody_knows_is_reached_on_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str, port: None) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert advertised_host("0.0.0.0", "") == "127.0.0.1"


def test_the_status_page_is_named_by_the_address_that_it_listens_on(tmp_path: Path) -> None:
    # By default that is this machine only, whatever name the system itself is reached by.
    with running_system(tmp_path, ["--advertise=cs1.lab.example", "--http-port=0"]) as system:
        assert system.address.startswith("cs1.lab.example:")
        with urllib.request.urlopen(f"{system.status_page}healthz", timeout=10) as answer:
            assert answer.read() == b"ok\n"
