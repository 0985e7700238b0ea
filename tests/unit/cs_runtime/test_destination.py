"""The rule that decides where a program runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cs_runtime.destination import (
    Address,
    Destination,
    choose_destination,
    given_address,
    surrounding_address,
)
from cs_runtime.errors import NoSystemError

FLAG = Address("10.0.0.7:9000", "--cs_ip")
SITE = Address("10.0.0.9", "CS_IP")
NO_ADDRESS = "no address: pass --cs_ip or set cs_ip of the site"


@pytest.mark.parametrize(
    ("given", "surrounding", "cpu_reason", "line"),
    [
        (FLAG, SITE, "", "training on the CS system at 10.0.0.7:9000 (--cs_ip)"),
        (None, SITE, "", "training on the CS system at 10.0.0.9 (CS_IP)"),
        (None, None, "", f"training on an embedded simulated CS system ({NO_ADDRESS})"),
        (None, None, "use_cs=False", "training on this CPU (use_cs=False)"),
        # Neither the site nor a flag takes a program that asks for this CPU to a system.
        (FLAG, SITE, "use_cs=False", "training on this CPU (use_cs=False)"),
    ],
)
def test_an_address_then_the_request_for_this_cpu_then_an_embedded_system(
    given: Address | None, surrounding: Address | None, cpu_reason: str, line: str
) -> None:
    assert choose_destination(given, surrounding, cpu_reason).describe("train") == line


def test_a_compile_needs_no_system_and_is_for_one_even_if_calls_run_on_this_cpu() -> None:
    place = choose_destination(None, None, "use_cs=False", compiles=True)
    assert (place.kind, place.address) == ("none", None)
    line = "compiling for a CS system with the fabric cs1 (no address)"
    assert place.describe("compile_only", fabric="cs1") == line
    place = choose_destination(FLAG, None, compiles=True)
    assert place.describe("compile_only") == "compiling for the CS system at 10.0.0.7:9000 (--cs_ip)"


def test_tasks_that_must_all_reach_the_system_need_its_address() -> None:
    with pytest.raises(NoSystemError, match="the 3 tasks of this job must all reach") as caught:
        choose_destination(None, None, num_tasks=3)
    assert caught.value.exit_code == 2
    assert choose_destination(None, None, "--cpu", num_tasks=3).on_cpu
    assert choose_destination(None, SITE, num_tasks=3).address == "10.0.0.9"


def test_the_name_of_a_system_is_in_the_line() -> None:
    place = Destination("system", "cs_ip", "10.0.0.1")
    assert place.describe("eval", "cs-a") == "evaluating on the CS system cs-a at 10.0.0.1 (cs_ip)"


@pytest.mark.parametrize(
    ("arguments", "source"),
    [
        (["run.py", "--mode=train", "--cs_ip=10.0.0.7:9000"], "--cs_ip"),
        (["run.py", "-cs", "10.0.0.7:9000"], "-cs"),
        (["run.py", "10.0.0.7:9000"], "mgmt_address"),
    ],
)
def test_the_source_is_the_flag_that_has_the_address_else_the_argument(
    arguments: list[str], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert given_address("10.0.0.7:9000", "mgmt_address") == Address("10.0.0.7:9000", source)


def test_the_default_of_the_original_is_no_address() -> None:
    assert given_address("cluster-server.cerebras.com:443", "mgmt_address") is None
    assert given_address("", "cs_ip") is None


def test_the_environment_precedes_the_site_file_which_a_launcher_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CS_IP", "CS_SYSTEMS", "CSRUN_PYTHON", "CSRUN_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert surrounding_address() is None
    file = tmp_path / "site.yaml"
    file.write_text("cs_ip: 10.0.0.5\n")
    monkeypatch.setenv("CSRUN_SITE_CONFIG", str(file))
    assert surrounding_address() == Address("10.0.0.5", f"cs_ip of the site, {file}:1")
    monkeypatch.setenv("CS_IP", "10.0.0.6")
    assert surrounding_address() == Address("10.0.0.6", "CS_IP")
    monkeypatch.delenv("CS_IP")
    monkeypatch.setenv("CSRUN_RANK", "0")
    assert surrounding_address() is None
