from cs_system.server.chief import ChiefMonitor


def check_until(monitor, start_s, end_s, is_working=False):
    """Check a monitor every second; return its lines."""
    lines = []
    for now_s in range(int(start_s) + 1, int(end_s) + 1):
        line = monitor.check(float(now_s), is_working=is_working)
        if line is not None:
            lines.append(line)
    return lines


def test_a_silent_chief_is_logged_every_ten_seconds():
    monitor = ChiefMonitor("job-7", 60.0, 0.0, 0.0)
    lines = check_until(monitor, 0, 45)
    assert lines == [
        f"the chief of job job-7 has not answered for {silence_s} s; it counts as lost after 60 s"
        for silence_s in (10, 20, 30, 40)
    ]
    assert monitor.loss_text == "has not answered for 45 s"
    assert monitor.heartbeat("", 45.5) == "the chief answers again after 46 s"
    assert monitor.heartbeat("", 47.5) is None
    assert monitor.loss_text == "has gone"


def test_a_chief_too_busy_for_heartbeats_is_lost_after_three_times_the_timeout():
    monitor = ChiefMonitor("job-7", 60.0, 0.0, 0.0)
    lines = check_until(monitor, 0, 179)
    assert lines[5:] == [
        f"the chief of job job-7 has not answered for {silence_s} s, except for pings; it counts "
        "as lost after 180 s"
        for silence_s in range(60, 180, 10)
    ]
    assert monitor.stall_text is None
    check_until(monitor, 179, 180)
    assert monitor.stall_text == "its chief has not answered for 180 s, except for pings"
    monitor.heartbeat("", 180.5)
    assert monitor.stall_text is None


def test_heartbeats_are_no_activity():
    monitor = ChiefMonitor("job-7", 60.0, 1800.0, 0.0)
    for now_s in range(2, 1800, 2):
        monitor.heartbeat("", float(now_s))
        monitor.check(float(now_s), is_working=False)
    assert monitor.idle_s(1799.0) == 1799.0
    assert monitor.idle_text(1799.0) is None
    text = monitor.idle_text(1800.0)
    assert text is not None
    assert text.startswith("its chief has not used it for 30 min 0 s (limit of the system: --idle-release-s)")


def test_calls_and_named_work_are_activity():
    monitor = ChiefMonitor("job-7", 60.0, 100.0, 0.0)
    monitor.act(90.0)
    assert monitor.idle_text(150.0) is None
    check_until(monitor, 150, 400, is_working=True)
    assert monitor.idle_s(400.0) == 0.0
    monitor.heartbeat("compiling", 401.0)
    check_until(monitor, 401, 900)
    assert monitor.idle_text(900.0) is None
    monitor.heartbeat("", 901.0)
    check_until(monitor, 901, 999)
    assert monitor.idle_text(999.0) is None
    assert monitor.idle_text(1000.0) is not None


def test_without_a_limit_an_idle_chief_keeps_the_system():
    assert ChiefMonitor("job-7", 60.0, 0.0, 0.0).idle_text(1e9) is None
