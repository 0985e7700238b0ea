"""Worker processes that are killed, stopped and replaced at scheduled batches."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cs_stream.errors import WorkerLostError
from cs_stream.receiver import WorkerPhase
from tests.loopback import Loopback, take_numbered

StartProcess = Callable[..., "subprocess.Popen[str]"]


def wait_until_stopped(process: "subprocess.Popen[str]") -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_workers_killed_at_scheduled_batches_and_restarted_change_nothing(
    start_process: StartProcess,
) -> None:
    kills = {0: [4], 1: [0, 9]}

    def keep_alive(worker: int) -> str:
        for batch in kills[worker]:
            process = start_process(run, worker, 20, signal="SIGKILL", signal_at=batch)
            assert process.wait(timeout=60) == -signal.SIGKILL
        return start_process(run, worker, 20).communicate(timeout=60)[0]

    with Loopback(num_workers=2) as run, ThreadPoolExecutor(2) as pool:
        last_words = [pool.submit(keep_alive, worker) for worker in kills]
        assert take_numbered(run.ring, timeout_s=60) == list(range(40))
        run.ring.close()
        assert [future.result(timeout=60) for future in last_words] == ["bye reconnects=0\n"] * 2
        assert [entry.connects for entry in run.ring.stats().workers] == [2, 3]


def test_a_zombie_is_fenced_and_ends_when_it_wakes(start_process: StartProcess) -> None:
    with Loopback() as run:
        zombie = start_process(run, 0, 30, signal="SIGSTOP", signal_at=6)
        wait_until_stopped(zombie)
        assert take_numbered(run.ring, count=3) == [0, 1, 2]
        successor = start_process(run, 0, 30)
        assert take_numbered(run.ring, count=12, timeout_s=60) == list(range(3, 15))
        zombie.send_signal(signal.SIGCONT)
        output, _ = zombie.communicate(timeout=60)
        assert zombie.returncode == 1
        assert output.startswith(
            "ReplacedError: the CS system refuses worker 0 of job 'job': worker 0 (host "
        )
        assert f"pid {successor.pid}) took over" in output
        assert take_numbered(run.ring, timeout_s=60) == list(range(15, 30))
        run.ring.close()
        assert successor.communicate(timeout=60)[0] == "bye reconnects=0\n"
        assert run.ring.stats().workers[0].connects == 2


def test_a_worker_that_sleeps_is_lost_by_its_silence_and_welcome_when_it_wakes(
    start_process: StartProcess,
) -> None:
    with Loopback(liveness_s=0.5, reconnect_s=0.0) as run:
        worker = start_process(run, 0, 10, signal="SIGSTOP", signal_at=5)
        wait_until_stopped(worker)
        assert take_numbered(run.ring, count=5, timeout_s=60) == [0, 1, 2, 3, 4]
        with pytest.raises(WorkerLostError, match=rf"pid {worker.pid}\) is gone for .*has not answered for"):
            run.ring.take(timeout_s=60)
        worker.send_signal(signal.SIGCONT)
        while run.ring.stats().workers[0].phase is WorkerPhase.LOST:
            assert worker.poll() is None
        assert take_numbered(run.ring, timeout_s=60) == [5, 6, 7, 8, 9]
        run.ring.close()
        assert worker.communicate(timeout=60)[0].startswith("bye reconnects=")


def test_a_worker_that_sleeps_less_than_the_liveness_time_keeps_its_connection(
    start_process: StartProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cs_stream")
    with Loopback(liveness_s=3.0, reconnect_s=0.0) as run:
        worker = start_process(run, 0, 10, signal="SIGSTOP", signal_at=5)
        wait_until_stopped(worker)
        assert take_numbered(run.ring, count=5, timeout_s=60) == [0, 1, 2, 3, 4]
        time.sleep(2.0)
        worker.send_signal(signal.SIGCONT)
        assert take_numbered(run.ring, timeout_s=60) == [5, 6, 7, 8, 9]
        run.ring.close()
        assert worker.communicate(timeout=60)[0] == "bye reconnects=0\n"
        assert run.ring.stats().workers[0].connects == 1
    assert re.search(
        r"worker 0 at \S+ has not answered for 1 s; its connection counts as lost after 3 s", caplog.text
    )
    assert re.search(r"worker 0 at \S+ answers again after [23] s", caplog.text)


def test_nobody_comes_back_for_a_killed_worker(start_process: StartProcess) -> None:
    with Loopback(num_workers=2, reconnect_s=0.2) as run:
        run.start_sender(0, count=20)
        killed = start_process(run, 1, 20, signal="SIGKILL", signal_at=3)
        with pytest.raises(WorkerLostError) as caught:
            take_numbered(run.ring, timeout_s=60)
        assert killed.wait(timeout=60) == -signal.SIGKILL
        assert caught.value.worker == 1
        assert f"pid {killed.pid}) is gone for 0." in str(caught.value)
        assert "no process took its place within 0.2 s; see the worker's log" in str(caught.value)
