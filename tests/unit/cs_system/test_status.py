from dataclasses import replace

from click.testing import CliRunner

from cs_system.address import parse_address
from cs_system.commands import main
from cs_system.errors import clock_text, duration_text
from cs_system.status import (
    Event,
    Limits,
    QueuedJob,
    RunInfo,
    SystemInfo,
    WaferInfo,
    WorkerInfo,
    info_to_wire,
    read_info,
    render,
)


def info(run=None, state="IDLE", waiting=0):
    return SystemInfo(
        name="CS system simulator",
        version="0.1.0",
        address="127.0.0.1:9000",
        state=state,
        fabric="cs2",
        fabric_spec={},
        data_address="127.0.0.1:9001",
        uptime_s=200.0,
        waiting_jobs=waiting,
        run=run,
        limits=Limits(1, 2, 3),
    )


def test_without_an_address_the_three_places_for_one_are_named():
    done = CliRunner().invoke(main, ["status"], env={"CS_IP": None})
    assert done.exit_code == 2
    assert "give --cs_ip=IP:PORT, CS_IP or the site's cs_ip" in done.output


def test_an_idle_system():
    assert render(info(), now_s=0.0) == (
        "system   CS system simulator at 127.0.0.1:9000, data plane 127.0.0.1:9001\n"
        "toolkit  0.1.0, fabric cs2, up 3 min 20 s\n"
        "state    IDLE"
    )


def test_texts_of_clients_do_not_control_a_terminal():
    evil, safe = "\x1b[2J\x9b31m\u202e\n", r"\x1b[2J\x9b31m\u202e\x0a"
    worker = WorkerInfo(0, "lost", evil, 3, last_error=evil)
    run = RunInfo(evil, 0.0, 1, 0.0, 0.0, (worker,), (), bound_by=(evil,))
    sent = replace(info(run), events=(Event(1.0, "INFO", evil, evil),), queue=(QueuedJob(evil, evil, 1.0),))
    got = read_info(info_to_wire(sent, 1, "", 9001), parse_address("127.0.0.1:9000"))
    assert got.events == (Event(1.0, "INFO", safe, safe),)
    assert got.queue == (QueuedJob(safe, safe, 1.0),)
    assert got.run == replace(
        run, job=safe, workers=(replace(worker, host=safe, last_error=safe),), bound_by=(safe,)
    )
    assert got.fabric_spec == {}


def test_a_run_that_waits_for_a_worker():
    run = RunInfo(
        job="job-7",
        since=1_700_000_000.0,
        step=1200,
        steps_per_s=2140.25,
        samples_per_s=547904.0,
        workers=(WorkerInfo(0, "connected", "node1", 700), WorkerInfo(1, "lost", "node2", 500)),
        waiting_for=(1,),
    )
    text = render(info(run, "WAITING FOR INPUT", waiting=2), now_s=1_700_000_045.0)
    assert text.splitlines()[2:] == [
        "state    WAITING FOR INPUT",
        f"job      job-7 since {clock_text(1_700_000_000.0)} (45 s)",
        "step     1200, 2,140 steps/s, 547,904 samples/s",
        "workers  1 of 2 connected; waiting for worker 1 (lost)",
        "queue    2 job(s) waiting",
    ]


def test_a_run_in_which_a_system_does_not_answer():
    late = "CS system 2 of 4 has not answered for 6 s; the run ends after 60 s"
    run = RunInfo("job-7", 0.0, 0, 0.0, 0.0, (), (), late)
    assert f"late     {late}" in render(info(run, "RUNNING"), now_s=1.0).splitlines()


def test_a_run_in_which_a_system_is_slow():
    wafers = (WaferInfo(0.1, 0.02), WaferInfo(0.45, 0.03))
    run = RunInfo("job-7", 0.0, 0, 0.0, 0.0, (), (), slow="CS system 2 of 2 is slow", wafers=wafers)
    assert render(info(run, "RUNNING"), now_s=1.0).splitlines()[-3:] == [
        "slow     CS system 2 of 2 is slow",
        "csx 1    computes for 10% of the time, gets weights for 2%",
        "csx 2    computes for 45% of the time, gets weights for 3%",
    ]


def test_a_run_that_has_not_opened_its_input():
    run = RunInfo("job-7", 0.0, 0, 0.0, 0.0, (), ())
    assert "step" not in render(info(run, "PROGRAMMING"), now_s=1.0)


def test_durations():
    assert [duration_text(s) for s in (-1, 59.9, 60, 3600, 7500, 90000)] == [
        "0 s",
        "59 s",
        "1 min 0 s",
        "1 h 0 min",
        "2 h 5 min",
        "1 d 1 h",
    ]
