"""`cs_system status` as text."""

from __future__ import annotations

from cs_system.errors import clock_text
from cs_system.info import RunInfo, SystemInfo


def render(info: SystemInfo, now_s: float) -> str:
    """A few lines about a system and its run; `now_s` is in seconds since the epoch."""
    rows = [
        ("system", f"{info.name} at {info.address}, data plane {info.data_address}"),
        ("toolkit", f"{info.version}, fabric {info.fabric}, up {duration_text(info.uptime_s)}"),
        ("state", info.state),
    ]
    if info.num_csx > 1:
        rows.insert(1, ("wafers", str(info.num_csx)))
    if info.run is not None:
        rows += _run_rows(info.run, now_s)
    if info.waiting_jobs:
        rows.append(("queue", f"{info.waiting_jobs} job(s) waiting"))
    return "\n".join(f"{label:<8} {text}" for label, text in rows)


def _run_rows(run: RunInfo, now_s: float) -> list[tuple[str, str]]:
    rows = [("job", f"{run.job} since {clock_text(run.since)} ({duration_text(now_s - run.since)})")]
    if run.late:
        rows.append(("late", run.late))
    if run.slow:
        rows.append(("slow", run.slow))
    rows += [
        (
            f"csx {number}",
            f"computes for {wafer.computing:.0%} of the time, gets weights for {wafer.receiving:.0%}",
        )
        for number, wafer in enumerate(run.wafers, 1)
    ]
    if not run.workers:
        return rows
    rows.append(("step", f"{run.step}, {run.steps_per_s:,.1f} steps/s, {run.samples_per_s:,.0f} samples/s"))
    connected = sum(worker.phase in ("connected", "ended") for worker in run.workers)
    text = f"{connected} of {len(run.workers)} connected"
    if run.waiting_for:
        text += "; waiting for " + ", ".join(
            f"worker {run.workers[index].worker} ({run.workers[index].phase})" for index in run.waiting_for
        )
    return [*rows, ("workers", text)]


def duration_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"
