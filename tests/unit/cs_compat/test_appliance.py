"""The API of the original's appliance."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from cs_compat.appliance import log
from cs_compat.appliance.cluster import TelemetryClient, appliance_environ
from cs_compat.appliance.messages import (
    DebugArgs,
    get_debug_args,
    set_default_ini,
    set_ini,
    update_debug_args_from_keys,
    update_debug_args_with_mem_limits,
    write_debug_args,
)
from cs_toolkit.files import create_symlink
from cs_toolkit.subclasses import retrieve_all_subclasses
from cs_toolkit.units import bytes_to_human, convert_byte_unit


def test_debug_arguments_go_to_a_file_and_come_back(tmp_path: Path) -> None:
    written = DebugArgs()
    set_ini(written, ws_on=True, ws_count=3, ws_factor=0.5, ws_name='a "quoted" name')
    set_default_ini(written, ws_count=4, ws_other=5)
    written.debug_mgr.task_spec_hints["worker"].container_image = "image"
    written.debug_mgr.clean_pod_policy = DebugArgs.DebugMGR.CleanPodPolicy.NONE
    written.debug_mgr.systems.extend(["one", "two"])
    update_debug_args_with_mem_limits(written, {"wrk_memory_gi": 2, "steps": 7})
    update_debug_args_from_keys(written, {"debug_usr.ignore_nan": True})
    write_debug_args(written, tmp_path / "debug.proto")
    read = get_debug_args(str(tmp_path / "debug.proto"))
    assert read == written
    assert read.ini.ints["ws_count"] == 3
    assert read.as_dict()["debug_usr"] == {"worker_resource": {"memory_bytes": 2 << 30}, "ignore_nan": True}
    assert get_debug_args(read) is read
    assert not get_debug_args(None)


def test_a_file_of_debug_arguments_that_others_wrote(tmp_path: Path) -> None:
    file = tmp_path / "debug.proto"
    file.write_text(
        "# memory\ndebug_usr: < ratio: 1e-3, policy: MEDIUM, names: ['a', 'b'] >\n"
        "labels { key: 'a' value: -2 }\n"
    )
    read = get_debug_args(file)
    assert read.as_dict() == {
        "debug_usr": {"ratio": 1e-3, "policy": "MEDIUM", "names": ["a", "b"]},
        "labels": {"a": -2},
    }
    for text, where in (("a {\n b: 1\n", r":2: got 'the end'"), ("a: }", r":1: got '}'"), ('a: "b', ":1")):
        file.write_text(text)
        with pytest.raises(ValueError, match=where):
            get_debug_args(file)
    with pytest.raises(TypeError, match=r"ws_x is a list, expected a bool, int, float or str"):
        set_ini(DebugArgs(), ws_x=[1])


@pytest.mark.parametrize(
    ("size", "binary", "decimal"),
    [
        (0, "0.0B", "0.0B"),
        (1023, "1023.0B", "1.0KB"),
        (1536, "1.5KiB", "1.5KB"),
        (5 << 30, "5.0GiB", "5.4GB"),
        (1 << 62, "4096.0PiB", "4611.7PB"),
    ],
)
def test_sizes_are_readable(size: int, binary: str, decimal: str) -> None:
    assert bytes_to_human(size) == binary
    assert bytes_to_human(size, log_base=10) == decimal


def test_units_of_bytes() -> None:
    assert convert_byte_unit(10, "B", "GB") == 10_000_000_000
    assert convert_byte_unit(2048, "KiB") == 2
    assert convert_byte_unit(1234567, "MB", precision=2) == 1.23
    with pytest.raises(ValueError, match="tgt_unit is 'b', expected one of B, KB"):
        convert_byte_unit(1, "b")


def test_loggers_of_classes_and_levels(caplog: pytest.LogCaptureFixture) -> None:
    @log.named_class_logger("Part")
    class Named(log.ClassLogger):
        pass

    @log.named_class_logger
    class Other(log.ClassLogger):
        pass

    assert Named.logger.name == "cerebras.Part"
    assert Other.logger.name == f"cerebras.{__name__}.{Other.__qualname__}"
    with caplog.at_level(log.VERBOSE, logger="cerebras"):
        Named.logger.verbose("seen %d", 1)
        Named.logger.trace("not seen")
    assert caplog.messages == ["seen 1"]
    assert [log.get_level_name(name) for name in ("verbose", "TRACE", "Error")] == [15, 5, 40]
    log.wsc_logger.getChild("ws-cmd").setLevel(logging.DEBUG)
    try:
        assert [tuple(setting)[:2] for setting in log.collect_wsc_log_settings()] == [(10, "ws-cmd")]
    finally:
        log.wsc_logger.getChild("ws-cmd").setLevel(logging.NOTSET)


def test_the_environment_of_workers_is_that_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINE_OF_A_TEST", raising=False)
    appliance_environ["MINE_OF_A_TEST"] = "1"
    assert os.environ["MINE_OF_A_TEST"] == "1"
    assert list(appliance_environ) == ["MINE_OF_A_TEST"]
    del appliance_environ["MINE_OF_A_TEST"]
    assert "MINE_OF_A_TEST" not in os.environ


def test_a_link_replaces_the_one_before(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
        create_symlink(tmp_path / "latest", name)
        assert (tmp_path / "latest").read_text() == name
    assert len(list(tmp_path.iterdir())) == 3


def test_telemetry_is_taken_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="cerebras"):
        for _ in range(2):
            with TelemetryClient(None, max_buffer_size=5) as client:
                client.push({"loss": 1.0}, labels={"step": "1"})
                client.flush_data()
    assert len([line for line in caplog.messages if "not collected here" in line]) <= 1


def test_subclasses_of_all_levels() -> None:
    class A: ...

    class B(A): ...

    class C(B): ...

    class D(B, A): ...

    assert list(retrieve_all_subclasses(A)) == [B, C, D]
    assert list(retrieve_all_subclasses(A, lambda cls: cls is not B)) == [C, D]
