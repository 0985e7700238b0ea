"""Workers that fail, vanish or never come."""

import re
import subprocess
import sys
import threading

import pytest

from cs_stream.errors import RefusedError
from cs_stream.sender import Sender, WorkerIdentity
from cs_system.client import SystemClient, join_run, parse_address
from cs_system.errors import InputFailedError, InputMismatchError, WorkerLostError, WorkersTimeoutError
from cs_system.messages import InputIdentity
from tests.systems import running_system

# A worker that sends endless batches, and says so once the first is on its way.
WORKER = """
import sys
import numpy as np
from cs_system.client import join_run, parse_address
from cs_stream.batches import BatchLayout
from cs_stream.sender import Sender, WorkerIdentity

address, token, digest, worker = sys.argv[1:]
ticket = join_run(parse_address(address), "job", token, 30.0)
layout = BatchLayout.of([("input_0", "float32", (8, 4)), ("input_1", "int32", (8,))])
identity = WorkerIdentity(job_id="job", token=token, worker=int(worker), num_workers=2, input_digest=digest)

def batches(skip):
    print("started", flush=True)
    while True:
        yield np.zeros((8, 4), np.float32), np.zeros(8, np.int32)

Sender((ticket.data_host, ticket.data_port), identity, layout).run(batches)
"""


@pytest.fixture
def worker_process(system, helpers):
    processes = []

    def start(index):
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WORKER,
                system.address,
                helpers.token,
                helpers.identity.digest,
                str(index),
            ],
            stdout=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_killed_worker_ends_the_run_after_the_steps_before(
    loaded, workers, linear, helpers, client, worker_process
):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(0, 2), linear.batches(1, 2)], indices=[0])
    process = worker_process(1)
    loaded.wait_workers(20.0)
    stream = loaded.run_steps(10**9)
    parts = [next(stream)]
    process.kill()
    with pytest.raises(WorkerLostError, match="worker 1") as lost:
        parts.extend(stream)
    steps = sum(part.count for part in parts)
    assert lost.value.fields["worker"] == "1"
    assert loaded.fetch_state()["state.global_step"] == steps == client.info().run.step


def test_a_worker_whose_input_fails_ends_the_run_with_its_traceback(loaded, workers, linear, helpers):
    def broken(skip):
        for index, batch in enumerate(linear.batches(1, 2)(skip)):
            if index == 3:
                raise ValueError("record 17 is truncated")
            yield batch

    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(0, 2), broken])
    parts = []
    with pytest.raises(InputFailedError) as failed:
        parts.extend(loaded.run_steps(1000))
    labels = [label for part in parts for label in part.outputs["output_labels"][:, 0].tolist()]
    assert labels == [0, 1, 2, 3, 4, 5, 6]
    assert "worker 1" in str(failed.value)
    assert "record 17 is truncated" in str(failed.value)
    workers.threads[1].join(20.0)  # the run may end before the worker has left its frames
    assert isinstance(workers.errors[1], ValueError)


def test_missing_workers_are_named(loaded, workers, linear, helpers):
    loaded.open_input(3, helpers.identity, 0)
    workers.start([linear.batches(w, 3) for w in range(3)], indices=[1])
    progress = []
    with pytest.raises(WorkersTimeoutError) as missing:
        loaded.wait_workers(1.0, progress.append)
    assert "not all workers were ready within 1 s: worker 0 (not connected), worker 2 (not connected)" in str(
        missing.value
    )
    assert re.fullmatch(
        r"1 of 3 workers ready, waiting for worker 0 \(not connected\), worker 2 \(not connected\) "
        r"for [01] s; the run ends after 1 s",
        progress[-1],
    )


def test_a_worker_that_fails_before_its_first_batch(loaded, workers, linear, helpers):
    def broken(skip):
        raise FileNotFoundError("no data in /data/train")

    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(0, 2), broken])
    with pytest.raises(InputFailedError, match="no data in /data/train"):
        loaded.wait_workers(20.0)


def test_a_run_that_waits_for_a_worker_shows_it(loaded, workers, linear, helpers, client):
    def slow(skip):
        yield next(linear.batches(1, 2)(0))
        helpers.wait_until(lambda: shown.append(client.info()) or waits_for_worker_1(shown[-1]))

    shown = []
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(0, 2, 3), slow])
    stream = loaded.run_steps(100)
    assert sum(outputs.count for outputs in stream) == 4
    assert stream.end_of_input
    assert workers.errors == {}
    assert waits_for_worker_1(shown[-1])


def waits_for_worker_1(info):
    return info.state == "WAITING FOR INPUT" and info.run.waiting_for == (1,)


def test_a_worker_with_another_input_ends_the_wait_of_both_immediately(system, loaded, helpers):
    chief = InputIdentity(1, {"mode": "train", "tensor 0": "features float32[8, 4]"})
    other = InputIdentity(1, {"mode": "train", "tensor 0": "features float32[16, 4]"})
    loaded.open_input(2, chief, 0)
    difference = (
        r"worker 1 on node-7 has another input than the chief: "
        r"tensor 0: features float32\[16, 4\] in the worker, features float32\[8, 4\] in the chief"
    )
    with pytest.raises(InputMismatchError, match=difference):
        join_run(parse_address(system.address), "job", helpers.token, 60.0, other, "worker 1 on node-7")
    with pytest.raises(InputMismatchError, match=difference):
        loaded.wait_workers(60.0)


def test_a_worker_that_the_data_plane_refuses_ends_the_wait_of_the_chief(system, loaded, helpers, linear):
    loaded.open_input(2, helpers.identity, 0)
    ticket = join_run(parse_address(system.address), "job", helpers.token, 60.0)
    # Of a job of three workers: the chief counts two.
    identity = WorkerIdentity("job", helpers.token, 1, 3, helpers.identity.digest)
    sender = Sender((ticket.data_host, ticket.data_port), identity, linear.layout)
    with pytest.raises(RefusedError, match="num_workers: got 3, expected 2"):
        sender.run(linear.batches(1, 3))
    with pytest.raises(InputMismatchError, match=r"worker 1 \(host .*num_workers: got 3, expected 2"):
        loaded.wait_workers(60.0)


def test_an_unauthenticated_peer_does_not_end_the_wait_of_the_chief(system, loaded, workers, helpers, linear):
    loaded.open_input(2, helpers.identity, 0)
    ticket = join_run(parse_address(system.address), "job", helpers.token, 60.0)
    identity = WorkerIdentity("job", "guess", 1, 3, "nothing")
    with pytest.raises(RefusedError, match="token"):
        Sender((ticket.data_host, ticket.data_port), identity, linear.layout).run(linear.batches(1, 3))
    workers.start([linear.batches(0, 2), linear.batches(1, 2)])
    loaded.wait_workers(20.0)


def test_an_input_that_hangs_is_reported_and_ends_the_run(tmp_path, linear, helpers):
    hangs = threading.Event()

    def batches(skip):
        yield from linear.batches(0, 1, count=3)(skip)
        hangs.wait(60.0)

    told = []
    with running_system(tmp_path, ["--threads=1", "--input-patience-s=5"]) as system:
        workers = helpers.Workers(system.address, "job", linear.layout)
        with (
            SystemClient(parse_address(system.address)) as client,
            client.reserve("job", helpers.token) as reservation,
        ):
            reservation.load(linear.artifact)
            reservation.program()
            reservation.put_state(linear.state())
            reservation.open_input(1, helpers.identity, 0)
            workers.start([batches])
            reservation.wait_workers(20.0)
            with pytest.raises(InputFailedError, match=r"no batch for position 3 within 5\.\d* s: worker 0"):
                for _ in reservation.run_steps(10, told.append):
                    pass
            hangs.set()
    workers.join()
    assert any("waiting for a batch of worker 0" in text and "after 3 batches" in text for text in told)
