"""The check of the CS system before csrun_wse starts a job."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest

import csrun.system_status as module
from csrun.errors import CsrunError
from csrun.site import Site
from csrun.system_status import (
    Presence,
    SystemQueryError,
    SystemWatch,
    ask_systems,
    check_system,
    only_compiles,
    system_address,
)
from csrun.tasks.environment import Toolkit, program_environment, this_toolkit

TRAINS = ("python", "run.py", "--mode=train", "--cs_ip=10.0.0.5")
IDLE: Mapping[str, Any] = {"address": "10.0.0.5:9000", "run": None, "admission": {"drained_by": ""}}
BUSY: Mapping[str, Any] = {**IDLE, "run": {"job": "local-7", "since": 0.0}}
DRAINED: Mapping[str, Any] = {**IDLE, "address": "10.0.0.6:9000", "admission": {"drained_by": "ada@host"}}


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the query, and return the answer of the system."""
    said: list[Any] = [IDLE]

    def ask(address: str, toolkit: Toolkit, certs: str) -> Any:
        said.append(address)
        if isinstance(said[0], Exception):
            raise said[0]
        return said[0] if isinstance(said[0], list) else [said[0]]

    monkeypatch.setattr(module, "ask_systems", ask)
    return said


def checked(
    command: tuple[str, ...] = TRAINS, site: str = "", *, wait: bool = False, certain: bool = True
) -> str | None:
    return check_system(command, site, this_toolkit(), wait=wait, certain=certain)


def test_the_system_of_the_command_comes_before_that_of_the_site(answer: list[Any]) -> None:
    assert checked(TRAINS, "10.0.0.9") is None
    assert checked(("python", "run.py"), "10.0.0.9") is None
    assert checked(("python", "run.py")) is None
    assert answer[1:] == ["10.0.0.5", "10.0.0.9"]


def test_a_busy_system_is_reported_with_its_job(answer: list[Any]) -> None:
    answer[0] = BUSY
    with pytest.raises(
        CsrunError, match=r"is busy: held by local-7 since 19\S+ .*wait for it with csrun_wse --wait"
    ):
        checked()
    assert "held by local-7" in str(checked(wait=True))
    assert "held by local-7" in str(checked(("python", "run.py"), "10.0.0.5"))  # not named: no error
    assert checked((*TRAINS, "--compile_only")) is None
    assert checked(("python", "run.py", "--mode=validate_only", "--cs_ip=10.0.0.5")) is None
    assert checked(certain=False) is None  # the queue of a cluster decides


def test_a_pool_is_busy_if_none_of_its_systems_is_free(answer: list[Any]) -> None:
    answer[0] = [BUSY, IDLE]
    assert checked(("python", "run.py"), "10.0.0.5,10.0.0.6") is None
    answer[0] = [BUSY, DRAINED]
    text = str(checked(("python", "run.py"), "10.0.0.5,10.0.0.6"))
    assert text.startswith("none of the 2 CS systems is free: the CS system at 10.0.0.5:9000 is busy")
    assert text.endswith("the CS system at 10.0.0.6:9000 is drained by ada@host")
    answer[0] = [BUSY, BUSY]
    assert "the job will wait for it" in str(checked(("python", "run.py"), "10.0.0.5,10.0.0.6", wait=True))


def test_the_launcher_watches_no_system_of_a_pool() -> None:
    assert system_address(("python", "run.py"), "10.0.0.5,10.0.0.6:9001") is None
    assert system_address(TRAINS, "10.0.0.7,10.0.0.6") == ("10.0.0.5", 9000)


def test_a_part_that_does_not_answer_ends_the_job_with_its_name(answer: list[Any]) -> None:
    answer[0] = SystemQueryError("no CS system answers at 10.0.0.5:9000")
    with pytest.raises(CsrunError, match="no CS system answers"):
        checked()
    assert checked(certain=False) == "no CS system answers at 10.0.0.5:9000, seen from this machine"
    assert checked(("python", "run.py"), "10.0.0.5") == "no CS system answers at 10.0.0.5:9000"
    answer[0] = SystemQueryError("the CS system was not queried: no module grpc", asked=False)
    assert checked() == "the CS system was not queried: no module grpc"
    answer[0] = SystemQueryError("'10.0.0' is not an IPv4 address", 2)
    with pytest.raises(CsrunError, match="not an IPv4 address") as wrong:
        checked(certain=False)
    assert wrong.value.exit_code == 2


def test_the_variable_names_the_system_of_a_command_that_does_not(answer: list[Any]) -> None:
    def asked(command: tuple[str, ...]) -> str | None:
        return check_system(
            command, "10.0.0.9", this_toolkit(), wait=False, certain=True, variable="10.0.0.7"
        )

    assert asked(TRAINS) is None
    assert asked(("python", "run.py")) is None
    assert answer[1:] == ["10.0.0.5", "10.0.0.7"]
    answer[0] = SystemQueryError("no CS system answers at 10.0.0.7:9000")
    with pytest.raises(CsrunError, match="no CS system answers"):
        asked(("python", "run.py"))


def test_the_question_is_asked_by_the_client_of_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(SystemQueryError, match=f"no CS system answers at 127.0.0.1:{port}: .*refused"):
        ask_systems(f"127.0.0.1:{port}", this_toolkit())


def test_words_that_only_compile() -> None:
    assert only_compiles(("python", "run.py", "-m=compile_only"))
    assert only_compiles(("python", "run.py", "--mode", "validate_only"))
    assert not only_compiles(("python", "run.py", "--mode=train"))


@pytest.mark.parametrize("container", ["none", "singularity"])
def test_programs_get_the_system_of_the_site(container: Any) -> None:
    site = Site(cs_ip="10.0.0.9", container=container, container_image="/image.sif")
    assert program_environment({}, this_toolkit(), site).values["CS_IP"] == "10.0.0.9"
    assert "CS_IP" not in program_environment({}, this_toolkit(), Site()).values


@pytest.mark.parametrize(
    ("command", "default", "expected"),
    [
        (("python", "run.py", "--cs_ip=10.0.0.1"), "", ("10.0.0.1", 9000)),
        (("python", "run.py", "--cs_ip", "cs-1:9001"), "", ("cs-1", 9001)),
        (("run", "--cs-ip=cs-1"), "", ("cs-1", 9000)),
        (("run", "--cs_ip=a", "--cs_ip=b"), "", ("b", 9000)),
        (("run", "--cs_ip=[::1]:9005"), "", ("::1", 9005)),
        (("run", "--cs_ip=fe80::1"), "", ("fe80::1", 9000)),
        (("run", "--cs_ip=[fe80::1]"), "", ("fe80::1", 9000)),
        (("run", "--cs_ip"), "", None),
        (("run", "--cs_ip="), "10.0.0.2", None),
        (("run", "--cs_ip=host:port"), "", None),
        (("run", "--cs_ip=host:99999"), "", None),
        (("run",), "10.0.0.2:9100", ("10.0.0.2", 9100)),
        (("run",), "", None),
        (("run", "--cs_ip_list=10.0.0.1"), "", None),
    ],
)
def test_the_address_is_that_of_the_command_else_the_sites(
    command: tuple[str, ...], default: str, expected: tuple[str, int] | None
) -> None:
    assert system_address(command, default) == expected


def refuse(presence: Presence, now_s: float) -> None:
    presence.record_failure("Connection refused", now_s, is_refusal=True)


def test_a_system_that_was_never_there_cannot_be_gone() -> None:
    presence = Presence()
    for second in range(100):
        refuse(presence, float(second))
    assert not presence.gone


def test_only_refusals_in_a_row_count() -> None:
    presence = Presence()
    presence.record_success(10.0)
    refuse(presence, 12.0)
    refuse(presence, 13.0)
    presence.record_success(14.0)
    refuse(presence, 16.0)
    refuse(presence, 18.0)
    assert not presence.gone
    refuse(presence, 20.0)
    assert presence.gone
    assert presence.missing_s(20.0) == 6.0
    assert presence.reason == "Connection refused"


def test_a_system_that_only_does_not_answer_has_the_peer_timeout() -> None:
    presence = Presence(60.0)
    presence.record_success(0.0)
    for now_s in range(4, 60, 4):
        presence.record_failure("timed out", float(now_s), is_refusal=False)
        assert not presence.gone
    presence.record_failure("timed out", 60.0, is_refusal=False)
    assert presence.gone


def test_a_launcher_that_was_stopped_tries_again_before_a_system_is_gone() -> None:
    presence = Presence(60.0)
    presence.record_success(0.0)
    presence.record_failure("timed out", 300.0, is_refusal=False)
    assert not presence.gone
    presence.record_success(302.0)
    assert not presence.gone


def test_the_watch_notices_a_listener_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csrun.system_status.CONNECT_INTERVAL_S", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watch = SystemWatch("127.0.0.1", port)
        server.accept()[0].close()
    with selectors.DefaultSelector() as selector:
        selector.register(watch, selectors.EVENT_READ)
        assert selector.select(10)
    assert watch.gone
    assert watch.text.startswith(f"the CS system at 127.0.0.1:{port} is gone: no connection for 0 s")
    watch.close()


def test_a_lost_system_is_reported_with_the_time_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    measures, may_report = threading.Event(), threading.Event()

    def missing_s(presence: Presence, now_s: float) -> float:
        measures.set()
        may_report.wait(10)
        return 6.0

    monkeypatch.setattr("csrun.system_status.CONNECT_INTERVAL_S", 0.02)
    monkeypatch.setattr(Presence, "missing_s", missing_s)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = SystemWatch(*server.getsockname())
        server.accept()[0].close()
    assert measures.wait(10)
    assert not watch.gone
    may_report.set()
    with selectors.DefaultSelector() as selector:
        selector.register(watch, selectors.EVENT_READ)
        assert selector.select(10)
    assert watch.gone
    assert "no connection for 6 s" in watch.text
    watch.close()
