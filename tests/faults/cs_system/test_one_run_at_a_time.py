import re
import signal
import socket
import threading
import time

import pytest

from cs_system.client import SystemClient, join_run, parse_address
from cs_system.errors import (
    InputRefusedError,
    JoinTimeoutError,
    ReservationLostError,
    RunOverError,
    SystemBusyError,
)
from cs_system.messages import InputIdentity


def test_a_second_job_learns_who_holds_the_system(system, client, helpers):
    with (
        client.reserve("first-job", helpers.token),
        SystemClient(parse_address(system.address)) as other,
        pytest.raises(SystemBusyError, match=r"busy: held by first-job since 20\d\d-") as busy,
    ):
        other.reserve("second-job", helpers.token)
    assert busy.value.exit_code == 1
    assert busy.value.job == "first-job"


@pytest.mark.parametrize("name", ["", "two\nlines", "\x1b[31mred", "x" * 201])
def test_a_job_name_that_would_spoil_logs_is_refused(client, helpers, name):
    with pytest.raises(InputRefusedError, match="expected 1 to 200 printable characters"):
        client.reserve(name, helpers.token)


def test_the_system_is_free_when_close_returns(client, helpers):
    for _ in range(20):
        with client.reserve("job", helpers.token):
            pass


def test_waiting_jobs_come_in_the_order_of_their_arrival(system, client, helpers):
    order, lines = [], {name: [] for name in ("b", "c")}

    def work(name):
        with (
            SystemClient(parse_address(system.address)) as own,
            own.reserve(name, helpers.token, wait=True, on_wait=lines[name].append),
        ):
            order.append(name)

    threads = {name: threading.Thread(target=work, args=(name,)) for name in ("b", "c")}
    with client.reserve("a", helpers.token):
        for name, thread in threads.items():
            thread.start()
            helpers.wait_until(lambda name=name: bool(lines[name]))
        assert lines["b"][0].startswith(f"waiting for the CS system at {system.address}: held by a since")
        assert lines["b"][0].endswith("place 1 in the queue")
        assert lines["c"][0].endswith("place 2 in the queue")
        assert order == []
    for thread in threads.values():
        thread.join(60)
    assert order == ["b", "c"]
    assert lines["c"][-1].endswith("place 1 in the queue")


def test_a_job_that_stops_waiting_leaves_the_queue(system, client, helpers):
    def give_up(text):
        raise KeyboardInterrupt

    with client.reserve("a", helpers.token), SystemClient(parse_address(system.address)) as other:
        with pytest.raises(KeyboardInterrupt):
            other.reserve("b", helpers.token, wait=True, on_wait=give_up)
        helpers.wait_until(lambda: client_queue(system) == 0)


NOTICED_S = 10.0
"""A broken connection is noticed long before a silent one."""


def client_queue(system):
    with SystemClient(parse_address(system.address)) as client:
        return client.info().waiting_jobs


def test_a_killed_chief_frees_the_system(system, chief, helpers):
    process = chief("reserved")
    process.kill()
    assert helpers.wait_for_state(system, "IDLE") < NOTICED_S


@pytest.mark.soak
def test_a_chief_whose_machine_vanishes_frees_the_system(system, chief, helpers):
    process = chief("reserved")
    # Its connection stays open and nothing answers, as after a power cut.
    process.send_signal(signal.SIGSTOP)
    assert helpers.wait_for_state(system, "IDLE", 120.0) < 90.0


def test_a_chief_killed_in_its_run_frees_the_system_and_its_workers(system, chief, linear, workers, helpers):
    workers.start([linear.batches(w, 2) for w in range(2)])
    process = chief("step", linear.artifact.path)
    process.kill()
    assert helpers.wait_for_state(system, "IDLE") < NOTICED_S
    workers.join()
    assert workers.errors == {}
    for summary in workers.summaries.values():
        assert summary.stopped_reason is not None
        assert "the chief of job job has gone" in summary.stopped_reason
    assert "the system is free: its chief has gone" in system.log()


def test_a_waiting_job_gets_the_system_of_a_killed_chief(system, chief, client, helpers):
    process = chief("reserved")
    waiting = []

    def kill(text):
        waiting.append(text)
        process.kill()

    with client.reserve("next", helpers.token, wait=True, on_wait=kill):
        assert client.info().run.job == "next"
    assert "held by job since" in waiting[0]


def test_calls_after_the_end_say_why(client, linear, helpers):
    reservation = client.reserve("job", helpers.token)
    reservation.close()
    with pytest.raises(ReservationLostError, match="has ended: released by its chief"):
        reservation.load(linear.artifact)


def test_a_failing_chief_reports_the_reason_to_its_workers(system, client, linear, workers, helpers):
    def fail():
        with client.reserve("job", helpers.token) as reservation:
            reservation.load(linear.artifact)
            reservation.open_input(2, helpers.identity, 0)
            workers.start([linear.batches(w, 2) for w in range(2)])
            reservation.wait_workers(20.0)
            raise ValueError("the loss became NaN\nat step 7")

    with pytest.raises(ValueError, match="the loss became NaN"):
        fail()
    workers.join()
    for summary in workers.summaries.values():
        assert "the chief failed: ValueError: the loss became NaN" in str(summary.stopped_reason)


def test_a_worker_that_nobody_opens_an_input_for(system, client, helpers):
    address = parse_address(system.address)
    with pytest.raises(
        JoinTimeoutError, match=r"no input of job lonely to join within 0.1 s: the system is idle"
    ):
        join_run(address, "lonely", helpers.token, 0.1)
    with client.reserve("other", helpers.token):
        with pytest.raises(JoinTimeoutError, match="the system is held by other since"):
            join_run(address, "lonely", helpers.token, 0.1)
        with pytest.raises(JoinTimeoutError, match="its chief holds the system and is still programming it"):
            join_run(address, "other", helpers.token, 0.1)


def test_a_worker_with_a_foreign_token_is_refused(system, client, helpers):
    with (
        client.reserve("job", helpers.token),
        pytest.raises(InputRefusedError, match="token is not that of job job"),
    ):
        join_run(parse_address(system.address), "job", "guess", 5.0)


def test_a_worker_may_wait_across_two_reservations_of_its_job(system, client, linear, helpers):
    address = parse_address(system.address)
    training, evaluation = InputIdentity(1, {"mode": "train"}), InputIdentity(2, {"mode": "eval"})
    tickets = []
    thread = threading.Thread(
        target=lambda: tickets.append(join_run(address, "job", helpers.token, 20.0, evaluation))
    )
    with helpers.ended(thread):
        with client.reserve("job", helpers.token) as reservation:
            reservation.load(linear.artifact)
            reservation.open_input(1, training, 0)
            before = system.log().count("its chief is still in run 1")
            thread.start()
            helpers.wait_until(lambda: system.log().count("its chief is still in run 1") > before)
        with client.reserve("job", helpers.token) as reservation:
            reservation.load(linear.artifact)
            reservation.open_input(1, evaluation, 7)
            thread.join(20.0)
            assert [ticket.first_step for ticket in tickets] == [7]


def test_a_worker_that_is_behind_learns_that_its_run_is_over(system, client, linear, helpers):
    training, evaluation = InputIdentity(1, {"mode": "train"}), InputIdentity(2, {"mode": "train"})
    with client.reserve("job", helpers.token) as reservation:
        reservation.load(linear.artifact)
        reservation.open_input(1, evaluation, 40)
        with pytest.raises(RunOverError, match="run 1 of the program is over: the chief is in 2"):
            join_run(parse_address(system.address), "job", helpers.token, 5.0, training)
        assert join_run(parse_address(system.address), "job", helpers.token, 5.0, evaluation).first_step == 40


def test_a_worker_that_is_ahead_waits_for_the_run_of_its_number(system, client, linear, helpers):
    address = parse_address(system.address)
    training, evaluation = InputIdentity(1, {"mode": "train"}), InputIdentity(2, {"mode": "eval"})
    tickets, told = [], []

    def join():
        tickets.append(join_run(address, "job", helpers.token, 20.0, evaluation, on_wait=told.append))

    thread = threading.Thread(target=join)
    with helpers.ended(thread), client.reserve("job", helpers.token) as reservation:
        reservation.load(linear.artifact)
        reservation.open_input(1, training, 0)
        with pytest.raises(JoinTimeoutError, match="its chief is still in run 1 of the program"):
            join_run(address, "job", helpers.token, 0.1, evaluation)
        thread.start()
        helpers.wait_until(lambda: bool(told))
        assert re.fullmatch(
            r"waiting for the chief of job job to open the input, for \d+ s: "
            r"its chief is still in run 1 of the program",
            told[0],
        )
        reservation.load(linear.artifact)
        reservation.open_input(1, evaluation, 7)
        helpers.wait_until(lambda: bool(tickets))
    assert f"{tickets[0].data_host}:{tickets[0].data_port}" == system.data_address
    assert (tickets[0].first_step, tickets[0].position.position) == (7, 7)


def test_a_place_in_the_queue_has_a_limit(system, client, helpers):
    with (
        client.reserve("first-job", helpers.token),
        SystemClient(parse_address(system.address)) as other,
        pytest.raises(SystemBusyError, match=r"held by first-job since .* and still after 1 s in the queue"),
    ):
        other.reserve("second-job", helpers.token, wait=True, timeout_s=1.0)


def test_workers_that_wait_are_logged_once_for_each_reason(own_system, linear, helpers):
    address, tickets = parse_address(own_system.address), []

    def join(worker):
        tickets.append(join_run(address, "job", helpers.token, 60.0, worker=f"worker {worker}"))

    threads = [threading.Thread(target=join, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(5.0)  # each asks again every two seconds
    with SystemClient(address) as client, client.reserve("job", helpers.token) as reservation:
        time.sleep(3.0)
        reservation.load(linear.artifact)
        reservation.open_input(1, helpers.identity, 0)
        for thread in threads:
            thread.join(20)
    assert len(tickets) == 4
    assert "JoinTimeoutError" not in own_system.log()
    waits = [
        line.partition("a worker waits: ")[2] for line in own_system.log().splitlines() if "waits" in line
    ]
    assert waits == [
        "the system is idle, its chief has not asked for it",
        "its chief holds the system and is still programming it",
    ]


def test_unknown_peers_at_the_data_port_do_not_fill_the_log(own_system):
    host, port = own_system.data_address.rsplit(":", 1)
    for _ in range(100):
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
            peer.recv(100)
    lines = [line for line in own_system.log().splitlines() if "dropping connection" in line]
    assert 1 <= len(lines) <= 10
