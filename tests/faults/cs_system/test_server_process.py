"""The server process: its start, its signals, its output."""

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
from concurrent import futures

import numpy as np
import pytest

from cs_stream.batches import BatchLayout
from cs_system.client import SystemClient, parse_address
from cs_system.errors import ConnectionLostError, SystemStoppingError
from tests.systems import running_system, user_cpu_s


def cs_system(*arguments, timeout=20):
    return subprocess.run(
        [sys.executable, "-m", "cs_system", *arguments], capture_output=True, text=True, timeout=timeout
    )


def end(system, number):
    system.process.send_signal(number)
    return system.process.wait(60)


def test_the_ready_file_has_addresses_and_process(own_system, tmp_path):
    content = json.loads((tmp_path / "ready.json").read_text())
    assert content["address"] == own_system.address
    assert content["data_address"] == own_system.data_address
    assert content["pid"] == own_system.process.pid
    assert content["fabric"] == "cs2"
    assert f"ready: --cs_ip={own_system.address}" in own_system.log()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_an_idle_system(own_system, tmp_path, number, code):
    assert end(own_system, number) == code
    assert not (tmp_path / "ready.json").exists()
    assert f"{number.name}: shutting down" in own_system.log()
    assert "Traceback" not in own_system.log()
    for address in (own_system.address, own_system.data_address):
        host, port = address.split(":")
        with socket.create_server((host, int(port))):
            pass


def test_sigterm_in_a_run_is_reported_to_chief_workers_and_waiting_jobs(own_system, linear, workers, helpers):
    workers.address = own_system.address
    address = parse_address(own_system.address)
    queue = []

    def wait_in_line():
        with SystemClient(address) as client:
            try:
                client.reserve("next", helpers.token, wait=True, on_wait=queue.append)
            except Exception as error:
                queue.append(error)

    thread = threading.Thread(target=wait_in_line)
    with SystemClient(address) as client, client.reserve("job", helpers.token) as reservation:
        reservation.load(linear.artifact)
        reservation.program()
        reservation.put_state(linear.state())
        reservation.open_input(2, helpers.identity, 0)
        workers.start([linear.batches(w, 2) for w in range(2)])
        stream = reservation.run_steps(10**9)
        next(stream)
        with helpers.ended(thread):
            thread.start()
            helpers.wait_until(lambda: bool(queue))
            own_system.process.send_signal(signal.SIGTERM)
            with pytest.raises(SystemStoppingError, match=r"the CS system is shutting down \(SIGTERM\)"):
                list(stream)
        with pytest.raises((SystemStoppingError, ConnectionLostError)):
            reservation.fetch_state()
    assert own_system.process.wait(60) == 0
    assert isinstance(queue[-1], SystemStoppingError)
    workers.join()
    for summary in workers.summaries.values():
        assert "the CS system is shutting down (SIGTERM)" in str(summary.stopped_reason)
    assert "Traceback" not in own_system.log()


# Computes for minutes, so that a signal comes in the middle of a step.
ENDLESS = """
func.func @graph(%step: tensor<i64> {tf.resource_name = "state.global_step", tf.aliasing_output = 0 : i64},
                 %x: tensor<2xf32> {cs.input_name = "input_0"})
    -> (tensor<i64>, tensor<f32> {cs.output_name = "output_sum"})
    attributes {cs.mode = "train", cs.seed = 1 : i64} {
  %one = cirh.Const dense<1> : tensor<i64>
  %next = cirh.Add %step, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %a = cirh.RandomUniform %step {global_seed = 1 : i64, op_seed = 0 : i64}
      : (tensor<i64>) -> tensor<9000x9000xf32>
  %b = cirh.MatMul %a, %a {transpose_a = false, transpose_b = false}
      : (tensor<9000x9000xf32>, tensor<9000x9000xf32>) -> tensor<9000x9000xf32>
  %c = cirh.MatMul %b, %a {transpose_a = false, transpose_b = false}
      : (tensor<9000x9000xf32>, tensor<9000x9000xf32>) -> tensor<9000x9000xf32>
  %s = cirh.Reduce %c {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false}
      : (tensor<9000x9000xf32>) -> tensor<f32>
  func.return %next, %s : tensor<i64>, tensor<f32>
}
"""


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 143)])
def test_a_step_under_way_does_not_delay_the_end(own_system, helpers, tmp_path, signals, code):
    artifact = helpers.compiled(tmp_path / "artifacts", ENDLESS)
    layout = BatchLayout.of([("input_0", "float32", (2,))])
    workers = helpers.Workers(own_system.address, "job", layout)
    with (
        SystemClient(parse_address(own_system.address)) as client,
        client.reserve("job", helpers.token) as held,
    ):
        held.load(artifact)
        held.program()
        held.put_state({"state.global_step": np.zeros((), np.int64)})
        held.open_input(1, helpers.identity, 0)
        workers.start([lambda skip: itertools.repeat((np.zeros(2, np.float32),))])
        held.wait_workers(20.0)
        with futures.ThreadPoolExecutor(1) as pool:
            steps = pool.submit(list, held.run_steps(1000))
            # Before the first batch, the state is RUNNING, and a signal still ends the run immediately.
            idle_s = user_cpu_s(own_system.process.pid)
            helpers.wait_until(lambda: user_cpu_s(own_system.process.pid) > idle_s + 1.0)
            assert client.info().state == "RUNNING"
            for _ in range(signals - 1):
                own_system.process.send_signal(signal.SIGTERM)
                helpers.wait_until(lambda: "SIGTERM: shutting down" in own_system.log())
            assert end(own_system, signal.SIGTERM) == code
            with pytest.raises((SystemStoppingError, ConnectionLostError)):
                steps.result(10)
    workers.stop()
    workers.join()


def test_a_killed_system_is_a_lost_connection(own_system, helpers):
    with SystemClient(parse_address(own_system.address)) as client:
        reservation = client.reserve("job", helpers.token)
        own_system.process.kill()
        own_system.process.wait()
        with pytest.raises(ConnectionLostError, match="resume from the last checkpoint"):
            reservation.program()
        reservation.close()


def test_a_port_in_use(own_system):
    host, port = own_system.address.split(":")
    done = cs_system("serve", f"--port={port}", "--data-port=0", "--cache-size=0")
    assert done.returncode == 1
    assert f"cs_system: error: cannot listen on {host}:{port}: Address already in use" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_port_in_use(own_system):
    port = own_system.data_address.split(":")[1]
    done = cs_system("serve", "--port=0", f"--data-port={port}", "--cache-size=0")
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--data-port" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--fabric=cs9"], 2, "fabric is 'cs9', expected one of"),
        (["--port=70000"], 2, "70000 is not in the range"),
        (["--threads=0"], 2, "0 is not in the range"),
        (
            ["--ready-file=missing/dir/file"],
            2,
            "--ready-file=missing/dir/file: cannot be written: No such file",
        ),
        (["--host=no-such-host.invalid", "--insecure"], 1, "no-such-host.invalid"),
        (["--prot=1"], 2, "No such option"),
    ],
)
def test_bad_flags_are_explained(flags, code, text):
    done = cs_system("serve", "--port=0", "--cache-size=0", *flags)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_for_everybody_needs_a_choice():
    done = cs_system("serve", "--port=0", "--cache-size=0", "--host=0.0.0.0")
    assert done.returncode == 2
    assert "--host=0.0.0.0: other machines reach this address; give the certificate" in done.stderr


def test_an_insecure_address_for_everybody_warns(tmp_path):
    with running_system(
        tmp_path, ["--host=0.0.0.0", "--advertise=127.0.0.1", "--cache-size=0", "--insecure"]
    ) as system:
        assert "WARNING" in system.log()
        assert "--insecure on 0.0.0.0: nothing is encrypted" in system.log()
        with SystemClient(parse_address(system.address)) as client:
            assert client.info().data_address == system.data_address


def test_a_second_start_uses_the_compiled_program(tmp_path, linear, helpers):
    def program(directory):
        directory.mkdir()
        with running_system(directory, [f"--cache-dir={tmp_path / 'cache'}", "--threads=1"]) as system:
            with (
                SystemClient(parse_address(system.address)) as client,
                client.reserve("job", helpers.token) as reservation,
            ):
                reservation.load(linear.artifact)
                reservation.program()
                reservation.put_state(linear.state())
            assert "ERROR" not in system.log()
        return sorted(
            path.name for path in (tmp_path / "cache").rglob("*") if not path.name.endswith("-atime")
        )

    first = program(tmp_path / "one")
    assert any("cache" in name for name in first)
    assert program(tmp_path / "two") == first


def test_status_of_an_idle_system(system):
    done = cs_system("status", f"--cs_ip={system.address}")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"CS system simulator at {system.address}" in done.stdout
    assert "state    IDLE" in done.stdout
    # Existing programs append a port to whatever they are given.
    done = cs_system("status", f"--cs_ip={system.address}:9000", "--json")
    assert json.loads(done.stdout)["state"] == "IDLE"


def test_status_of_a_run(system, client, helpers):
    with client.reserve("job-17", helpers.token):
        done = cs_system("status", "--cs_ip", system.address)
    assert "state    RESERVED" in done.stdout
    assert "job      job-17 of " in done.stdout


def test_status_watches_until_ctrl_c(system):
    process = subprocess.Popen(
        [sys.executable, "-m", "cs_system", "status", f"--cs_ip={system.address}", "--json", "--watch"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert lines[1]["uptime_s"] > lines[0]["uptime_s"]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("address", "code", "text"),
    [
        ("127.0.0.1:1", 1, "no CS system answers at 127.0.0.1:1"),
        ("127.0.0.1:port", 2, "cs_ip='127.0.0.1:port': 'port' is not a port number"),
    ],
)
def test_status_of_nothing(address, code, text):
    done = cs_system("status", f"--cs_ip={address}")
    assert done.returncode == code
    assert text in done.stderr


def test_help_is_quick_because_it_loads_little():
    code = (
        "import sys; from click.testing import CliRunner; from cs_system.commands import main\n"
        "for arguments in (['--help'], ['serve', '--help'], ['status', '--help']):\n"
        "    assert CliRunner().invoke(main, arguments).exit_code == 0\n"
        "slow = {'cryptography', 'grpc', 'jax', 'logging.handlers', 'numpy', 'pydantic', 'ssl', 'xdsl'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
