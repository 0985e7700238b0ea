"""The time per sample of threads that wait and compute, and share CPUs. Pure.

Threads meet at the CPUs although there is CPU time to spare: while one waits, two others may want to compute.
They are machines that break down after a while of waiting and c repairmen, the CPUs, repair in a
time of computing (a closed queue, L. Kleinrock, "Queueing Systems I", 1975, chapter 3, M/M/m//M). If r =
computing / waiting of a thread, k of N threads are at the CPUs for a part of the time that is proportional to

    w(k) = w(k-1) * (N - k + 1) * r / min(k, c)        w(0) = 1

and t(c) = computing * sum w(k) / sum min(k, c) w(k). A CPU that is shared in slices makes that true of any
distribution of the times (F. Baskett et al., "Open, closed, and mixed networks of queues", Journal of the ACM
22, 1975). Threads whose times never vary may do better or worse, as they happen to be in step: t(c) then is
anywhere between max(serial, parallel / c) and serial + (N - 1) / N * parallel (Lazowska, see `pace`).
"""

from __future__ import annotations

import math

_ALWAYS_COMPUTING = 1e9  # times as long as waiting; that much less: always waiting


def queueing_time(computes: float, waits: float, threads: int, cpus: float) -> float:
    """Time per sample of threads that wait and compute alternately, by the module's formula.

    Args:
        computes: CPU time that a thread takes for a sample, in any unit.
        waits: time for which it needs no CPU, in the same unit.
        threads: number of them, at least 1.
        cpus: that they share, more than 0.
    """
    if threads <= cpus:
        return (computes + waits) / threads
    if waits <= 0 or computes / waits > _ALWAYS_COMPUTING:
        return computes / cpus
    if computes / waits < 1 / _ALWAYS_COMPUTING / threads:
        return (computes + waits) / threads
    share = [0.0]  # of time, logarithm: the factors of many threads would overflow
    for at_cpus in range(1, threads + 1):
        arrive = (threads - at_cpus + 1) / min(at_cpus, cpus) * (computes / waits)
        share.append(share[-1] + math.log(arrive))
    most = max(share)
    weights = [math.exp(one - most) for one in share]
    busy = sum(weight * min(at_cpus, cpus) for at_cpus, weight in enumerate(weights))
    return computes * sum(weights) / busy
