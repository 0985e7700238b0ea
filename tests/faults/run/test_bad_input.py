"""Bad input of a run in this process: one clear message, the right exit code, nothing half-written."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.errors import CompileError
from cs_runtime.errors import CallError, ModelDirError, NonFiniteLossError
from cs_system.client import SystemClient, parse_address
from cs_system.errors import CsSystemError
from estimator import CerebrasEstimator, CSRunConfig
from tests.programs.tf.linear_classifier import ModelFn, input_fn, linear_classifier
from tests.systems import RunningSystem

v1 = tf.compat.v1


def estimator(model_dir: Path, cs_ip: str | None, model_fn: ModelFn | None = None) -> CerebrasEstimator:
    return CerebrasEstimator(
        model_fn or linear_classifier(), model_dir, config=CSRunConfig(cs_ip=cs_ip, tf_random_seed=1)
    )


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """A port of this machine that answers every connection with `answer`, or says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                if answer:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(timeout=5)
            for connection in connections:
                connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def check_refused_before_compiling(model_dir: Path, cs_ip: str) -> str:
    with pytest.raises(CsSystemError) as caught:
        estimator(model_dir, cs_ip).train(input_fn, max_steps=5)
    assert caught.value.exit_code in (1, 2)
    assert not list(model_dir.glob("model.ckpt*"))
    assert not list(model_dir.glob("cs_*"))
    return str(caught.value)


def test_unreachable_address(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    message = check_refused_before_compiling(tmp_path, address)
    assert address in message
    assert "cs_system serve" in message


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_port_that_speaks_something_else(tmp_path: Path, answer: bytes | None) -> None:
    with listener(answer) as address:
        assert address in check_refused_before_compiling(tmp_path, address)


@pytest.mark.parametrize("text", ["not an address", "127.0.0.1:http", "127.0.0.1:99999"])
def test_malformed_address(tmp_path: Path, text: str) -> None:
    assert text in check_refused_before_compiling(tmp_path, text)


def test_port_of_old_programs_that_append_9000(system: RunningSystem, tmp_path: Path) -> None:
    estimator(tmp_path, f"{system.address}:9000").train(input_fn, max_steps=2)
    assert (tmp_path / "model.ckpt-2.index").exists()


def test_busy_system_names_the_job_that_holds_it(system: RunningSystem, tmp_path: Path) -> None:
    with (
        SystemClient(parse_address(system.address)) as client,
        client.reserve("job-of-somebody", "secret"),
        pytest.raises(CsSystemError, match="job-of-somebody") as caught,
    ):
        estimator(tmp_path, system.address).train(input_fn, max_steps=5)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("num_csx", "execution", "message"),
    [
        (2, "weight_streaming", r"num_csx is 2, the CS system at \S+ has 1; ask for fewer, or start it with"),
        (
            3,
            "weight_streaming",
            "a batch of 8 samples cannot be shared equally by 3 CS systems; choose a batch",
        ),
        (16, "auto", "a batch of 8 samples cannot be shared equally by 16 CS systems"),
        (2, "pipelined", "num_csx is 2 with execution 'pipelined', expected 1: several CS systems share"),
    ],
)
def test_shares_that_cannot_be_are_refused_before_compiling(
    system: RunningSystem, tmp_path: Path, num_csx: int, execution: str, message: str
) -> None:
    config = CSRunConfig(cs_ip=system.address, num_csx=num_csx, execution=execution, tf_random_seed=1)
    with pytest.raises(CallError, match=message) as caught:
        CerebrasEstimator(linear_classifier(), tmp_path, config=config).train(input_fn, max_steps=5)
    assert caught.value.exit_code == 2
    assert not list(tmp_path.glob("model.ckpt*"))
    assert not list(tmp_path.glob("cs_*"))


def test_unknown_ops_are_all_reported_with_node_and_line(system: RunningSystem, tmp_path: Path) -> None:
    def exotic(logits: Any) -> Any:
        first = tf.raw_ops.Dawsn(x=logits, name="first_exotic")
        return tf.raw_ops.Spence(x=first, name="second_exotic")

    with pytest.raises(CompileError) as caught:
        estimator(tmp_path, system.address, linear_classifier(head=exotic)).train(input_fn, max_steps=5)
    message = str(caught.value)
    for text in ("Dawsn", "first_exotic", "Spence", "second_exotic", "test_bad_input.py"):
        assert text in message
    assert not list(tmp_path.glob("cs_*"))


def test_nan_loss_names_the_step_and_writes_no_checkpoint(system: RunningSystem, tmp_path: Path) -> None:
    model_fn = linear_classifier(
        head=lambda logits: logits * 1e30, optimizer=lambda: v1.train.GradientDescentOptimizer(1e30)
    )
    with pytest.raises(NonFiniteLossError, match="global step") as caught:
        estimator(tmp_path, system.address, model_fn).train(input_fn, max_steps=50)
    assert caught.value.exit_code == 1
    assert [path.name for path in tmp_path.glob("*.index")] == ["model.ckpt-0.index"]
    assert '"failed"' in (tmp_path / "run_summary.json").read_text()
    with SystemClient(parse_address(system.address)) as client:
        assert client.info().state == "IDLE"


def test_batches_of_varying_size_are_refused_with_the_cure(system: RunningSystem, tmp_path: Path) -> None:
    def ragged_input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(
            (np.zeros((20, 4), np.float32), np.zeros(20, np.int32))
        ).batch(8)

    with pytest.raises(ValueError, match="drop_remainder=True"):
        estimator(tmp_path, system.address).train(ragged_input_fn, max_steps=5)


def test_input_that_ends_early_ends_the_training_with_a_checkpoint(
    system: RunningSystem, tmp_path: Path
) -> None:
    def short_input_fn() -> tf.data.Dataset:
        return input_fn().take(7)

    trained = estimator(tmp_path, system.address)
    trained.train(short_input_fn, max_steps=50)
    assert trained.get_variable_value("global_step") == 7


def test_model_dir_that_is_a_file(system: RunningSystem, tmp_path: Path) -> None:
    blocked = tmp_path / "file" / "model_dir"
    blocked.parent.write_text("not a directory")
    with pytest.raises(ModelDirError, match="file/model_dir") as caught:
        estimator(blocked, system.address).train(input_fn, max_steps=5)
    assert caught.value.exit_code == 1


def test_corrupt_artifact_is_compiled_again_with_a_warning(
    system: RunningSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator(tmp_path, system.address).train(input_fn, max_steps=2)
    (artifact,) = tmp_path.glob("cs_*")
    executable = artifact / "step.jaxexport"
    damaged = bytearray(executable.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    executable.write_bytes(damaged)

    estimator(tmp_path, system.address).train(input_fn, max_steps=4)
    assert "compiled again" in caplog.text
    assert "step.jaxexport" in caplog.text
    assert executable.read_bytes() != bytes(damaged)
    assert (tmp_path / "model.ckpt-4.index").exists()
