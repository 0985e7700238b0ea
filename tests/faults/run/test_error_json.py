"""A failed compile leaves one message, an exit code, `error.json`, and nothing half-written."""

from __future__ import annotations

import errno
import inspect
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import tensorflow as tf

from cgc.artifact import open_artifact
from cgc.publishing import directory_lock
from cs_toolkit.loader import load_model
from estimator import CerebrasEstimator, CSRunConfig, report_errors
from tests.processes import wait_until
from tests.programs.tf.linear_classifier import input_fn, linear_classifier

v1 = tf.compat.v1
ROOT = Path(__file__).parents[3]
Report = dict[str, Any]


def estimator(
    model_dir: Path,
    middle: Callable[[Any], Any] = lambda logits: logits,
    execution: str = "auto",
    **arguments: Any,
) -> CerebrasEstimator:
    config = CSRunConfig(tf_random_seed=1, execution=execution)
    return CerebrasEstimator(linear_classifier(head=middle), model_dir, config=config, **arguments)


@pytest.fixture
def failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    """Compiles a program that cannot be compiled, and returns its `error.json`."""

    def run(
        middle: Callable[[Any], Any] = lambda logits: logits,
        data: Callable[..., Any] = input_fn,
        *,
        validate_only: bool = False,
        execution: str = "auto",
    ) -> Report:
        with pytest.raises(SystemExit) as ended, report_errors(tmp_path):
            estimator(tmp_path, middle, execution).compile(data, validate_only=validate_only)
        report: Report = json.loads((tmp_path / "error.json").read_text())
        assert report["exit_code"] == ended.value.code
        printed = capsys.readouterr().err
        assert printed.count("error: ") == 1
        assert report["message"] in printed
        assert "Traceback" not in printed
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == ["error.json", "params.yaml"], "something half-written"
        return report

    return run


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the line of a function that has a text in it."""
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize("validate_only", [True, False])
def test_unknown_operations_are_all_in_it(failure: Callable[..., Report], validate_only: bool) -> None:
    def exotic(logits: Any) -> Any:
        first = tf.raw_ops.Dawsn(x=logits, name="first_exotic")
        return tf.raw_ops.Spence(x=first, name="second_exotic")

    report = failure(exotic, validate_only=validate_only)
    assert report["kind"] == "UnsupportedOpsError"
    assert report["exit_code"] == 1
    found = {fault["node"]: fault for fault in report["faults"]}
    for op, node in (("Dawsn", "first_exotic"), ("Spence", "second_exotic")):
        fault = found[node]
        assert (fault["kind"], fault["op"]) == ("unknown operation", op)
        assert (fault["dtype"], fault["shape"]) == ("float32", [8, 3])
        assert fault["source"] == line_of(exotic, node)
        assert "input function" in fault["what_to_do"]
        assert fault["message"] in report["message"]


def test_double_precision(failure: Callable[..., Report]) -> None:
    def doubled(logits: Any) -> Any:
        return tf.cast(tf.cast(logits, tf.float64, name="wide") * 2.0, tf.float32)

    report = failure(doubled)
    assert (report["kind"], report["exit_code"]) == ("GraphTypeError", 1)
    (fault,) = [fault for fault in report["faults"] if fault["node"] == "wide"]
    assert (fault["op"], fault["dtype"], fault["shape"]) == ("Cast", "float64", [8, 3])
    assert fault["source"] == line_of(doubled, "tf.float64")
    assert "tf.cast(x, tf.float32)" in fault["what_to_do"]


def test_errors_after_an_unknown_operation_are_reported_together(failure: Callable[..., Report]) -> None:
    def two_faults(logits: Any) -> Any:
        strange = tf.raw_ops.Dawsn(x=logits, name="strange")
        return tf.cast(2.0 * tf.cast(strange, tf.float64, name="wide"), tf.float32)

    report = failure(two_faults)
    found = {fault["node"]: fault for fault in report["faults"]}
    assert found["strange"]["kind"] == "unknown operation"
    assert found["wide"]["kind"] == "element type"
    assert found["wide"]["source"] == line_of(two_faults, "wide")
    assert [name for name in found if name.startswith("wide")] == ["wide"], "not everything after it"


@pytest.mark.parametrize(
    ("dtype", "what_to_do"), [("float64", "tf.cast(x, tf.float32)"), ("string", "numbers")]
)
def test_batches_of_a_type_that_the_system_does_not_have(
    failure: Callable[..., Report], dtype: str, what_to_do: str
) -> None:
    def wrong() -> tf.data.Dataset:
        pixels = tf.zeros((64, 4), tf.float64) if dtype == "float64" else tf.fill((64, 4), "0.5")
        records = (pixels, np.zeros(64, np.int32))
        return tf.data.Dataset.from_tensor_slices(records).batch(8, drop_remainder=True)

    report = failure(data=wrong)
    assert (report["kind"], report["exit_code"]) == ("ComponentTypeError", 2)
    (fault,) = report["faults"]
    assert (fault["node"], fault["dtype"]) == ("features", dtype)
    assert what_to_do in fault["what_to_do"]


def test_text(failure: Callable[..., Report]) -> None:
    def spelled(logits: Any) -> Any:
        return logits + tf.strings.to_number(tf.strings.as_string(logits))

    report = failure(spelled)
    assert report["exit_code"] == 1
    assert {fault["op"] for fault in report["faults"]} >= {"AsString"}
    assert any(fault["dtype"] == "string" for fault in report["faults"])


def test_a_size_that_depends_on_the_data(failure: Callable[..., Report]) -> None:
    def chosen(logits: Any) -> Any:
        return logits + tf.reduce_sum(tf.boolean_mask(logits, logits > 0))

    report = failure(chosen)
    assert report["exit_code"] == 1
    (fault,) = report["faults"]
    assert "the number of rows that a mask selects" in fault["message"]
    assert fault["shape"][0] is None
    assert fault["source"] == line_of(chosen, "boolean_mask")
    assert "tf.where" in fault["what_to_do"]


def test_batches_of_any_size(failure: Callable[..., Report]) -> None:
    def ragged() -> tf.data.Dataset:
        records = (np.zeros((20, 4), np.float32), np.zeros(20, np.int32))
        return tf.data.Dataset.from_tensor_slices(records).batch(8)

    report = failure(data=ragged)
    assert (report["kind"], report["exit_code"]) == ("InputShapeError", 2)
    (fault,) = report["faults"]
    assert fault["shape"] == [None, 4]
    assert "drop_remainder=True" in fault["what_to_do"]


def wide(logits: Any) -> Any:
    enormous = v1.get_variable("enormous", [200_000, 200_000])
    inner = tf.matmul(logits, v1.get_variable("before", [3, 200_000]))
    inner = tf.matmul(inner, enormous, name="too_large")
    return tf.matmul(inner, v1.get_variable("after", [200_000, 3]))


def test_a_kernel_too_large_for_the_fabric(failure: Callable[..., Report]) -> None:
    report = failure(wide, execution="pipelined")
    assert (report["kind"], report["exit_code"]) == ("PlacementError", 1)
    (fault,) = report["faults"]
    assert fault["source"] == line_of(wide, "too_large")
    assert f"kernel {fault['node']} " in fault["message"]
    assert "make the layer or the model smaller" in fault["what_to_do"]
    assert report["shortage"]["needed_bytes_per_pe"] > report["shortage"]["available_bytes_per_pe"] > 0


def test_a_layer_too_large_for_the_fabric(failure: Callable[..., Report]) -> None:
    report = failure(wide)
    assert (report["kind"], report["exit_code"]) == ("PlacementError", 1)
    (fault,) = report["faults"]
    assert fault["source"] == line_of(wide, "too_large")
    assert f"layer {fault['node']} has 160,0" in fault["message"]
    assert "make the layer or the model smaller" in fault["what_to_do"]


def test_an_error_of_the_model_function(tmp_path: Path) -> None:
    def broken(_logits: Any) -> Any:
        raise KeyError("hidden_size")

    with pytest.raises(KeyError):
        estimator(tmp_path, broken).compile(input_fn)
    report = json.loads((tmp_path / "error.json").read_text())
    assert (report["kind"], report["exit_code"]) == ("KeyError", 1)
    assert "hidden_size" in report["message"]


def test_a_program_without_errors_gets_a_message_with_the_paths_of_the_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    estimator(tmp_path).compile(input_fn, validate_only=True)
    assert "every operation can run on the CS system" in caplog.text
    assert "| Kernel Name |" in capsys.readouterr().out
    assert not list(tmp_path.glob("cs_*")), "nothing is placed or written"
    estimator(tmp_path).compile(input_fn)
    (page,) = tmp_path.glob("cs_*/compile_report.html")
    assert f"for a browser: {page}" in caplog.text
    assert capsys.readouterr().out.startswith("Estimated Overall Performance: Samples/s ")


def test_the_next_success_removes_it(
    failure: Callable[..., Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failure(lambda logits: tf.math.special.dawsn(logits))
    estimator(tmp_path).compile(input_fn, validate_only=True)
    assert not (tmp_path / "error.json").exists()
    failure_again = estimator(tmp_path, lambda logits: tf.math.special.dawsn(logits))
    with pytest.raises(Exception, match="Dawsn"):
        failure_again.compile(input_fn)
    assert (tmp_path / "error.json").exists()
    estimator(tmp_path).compile(input_fn)
    assert not (tmp_path / "error.json").exists()


def test_it_is_in_the_compile_directory_and_next_to_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    monkeypatch.setenv("CSRUN_LOG_DIR", str(tmp_path / "logs"))
    program = estimator(
        tmp_path / "model", lambda logits: tf.math.special.dawsn(logits), compile_dir=tmp_path / "compiled"
    )
    with pytest.raises(Exception, match="Dawsn"):
        program.compile(input_fn)
    texts = {(tmp_path / folder / "error.json").read_text() for folder in ("compiled", "logs")}
    assert len(texts) == 1
    assert not (tmp_path / "model" / "error.json").exists()


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log folder of a launcher's job that this process is a task of; CSRUN_RANK says which."""
    folder = tmp_path / "logs"
    folder.mkdir()
    values = {"RANK": "0", "NUM_TASKS": "3", "JOB_ID": "job-1", "JOB_TOKEN": "secret", "LOG_DIR": str(folder)}
    for name, value in values.items():
        monkeypatch.setenv(f"CSRUN_{name}", value)
    return folder


def test_an_error_before_the_compilation_is_noted_next_to_the_logs(tmp_path: Path, logs: Path) -> None:
    (tmp_path / "params.yaml").write_text("batch_size: many\n")
    schema = pydantic.create_model("Params", batch_size=(int, ...))
    with pytest.raises(SystemExit) as ended, report_errors(tmp_path):
        load_model(tmp_path / "params.yaml", schema)
    report = json.loads((logs / "error.json").read_text())
    assert report["exit_code"] == ended.value.code == 2
    assert "params.yaml:1: 'batch_size' is 'many'" in report["message"]


def test_workers_leave_the_note_to_the_chief(
    tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_RANK", "1")
    with pytest.raises(SystemExit), report_errors(tmp_path):
        raise ValueError("of a worker")
    assert list(logs.iterdir()) == []


def test_an_unwritable_model_dir_is_recorded_next_to_the_logs_in_one_message(
    tmp_path: Path, logs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit), report_errors(tmp_path):
        estimator(tmp_path / "file" / "model").compile(input_fn)
    assert json.loads((logs / "error.json").read_text())["kind"] == "ModelDirError"
    assert "was not written" not in caplog.text


def test_the_error_of_an_unwritable_artifact_gives_advice(
    failure: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("cgc.publishing._rename_over", full)
    report = failure()
    assert (report["kind"], report["exit_code"]) == ("ArtifactWriteError", 1)
    assert report["faults"][0]["what_to_do"].startswith("free some space")


def test_waiting_for_another_compile_is_logged_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    estimator(tmp_path).compile(input_fn)
    (artifact,) = tmp_path.glob("cs_*")
    lock = directory_lock(artifact, timeout_s=0)
    lock.__enter__()
    shutil.rmtree(artifact)
    caplog.clear()

    def release_when_told() -> None:
        try:
            wait_until(lambda: "waiting for its result" in caplog.text)
        finally:
            lock.__exit__(None, None, None)

    other = threading.Thread(target=release_when_told)
    other.start()
    estimator(tmp_path).compile(input_fn)
    other.join()
    assert f"process {os.getpid()}" in caplog.text
    assert "is compiling the same program; waiting for its result" in caplog.text


@pytest.mark.parametrize("damage", ["executable", "version", "format"])
def test_an_artifact_that_cannot_be_used_is_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    estimator(tmp_path).compile(input_fn)
    (artifact,) = tmp_path.glob("cs_*")
    if damage == "executable":
        name, expected = "step.jaxexport", "step.jaxexport"
        (artifact / name).write_bytes((artifact / name).read_bytes()[:-10])
    else:
        manifest = json.loads((artifact / "manifest.json").read_text())
        if damage == "version":
            manifest["tool_version"] = expected = "cgc-0000000000000000"
        else:
            expected = f"format_version is 4, expected {manifest['format_version']}"
            manifest["format_version"] = 4
        (artifact / "manifest.json").write_text(json.dumps(manifest))
    caplog.clear()
    estimator(tmp_path).compile(input_fn)
    (warning,) = [record.message for record in caplog.records if "compiled again" in record.message]
    assert expected in warning
    assert not (tmp_path / "error.json").exists()
    open_artifact(artifact)


@pytest.mark.soak
def test_two_processes_that_compile_one_model_simultaneously_make_one_artifact(tmp_path: Path) -> None:
    """Both end well, with one artifact that one of them has made."""
    command = [sys.executable, str(Path(__file__).with_name("compile_program.py")), str(tmp_path)]
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], outputs
    (artifact,) = tmp_path.glob("cs_*")
    open_artifact(artifact)
    assert sum("Cached compilation found" in output for output in outputs) == 1
    assert not (tmp_path / "error.json").exists()
