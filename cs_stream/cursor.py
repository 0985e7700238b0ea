"""The deterministic order of a run's input, as arithmetic.

Position p (the p-th batch of the run) is batch number `p // N` of worker `p % N`. So the state of the whole
input is one integer, and any run with the same N sees the same batches in the same order. N is the number of
workers, `seq` a worker's own batch number; both count from 0.
"""


def position_of(worker: int, seq: int, num_workers: int) -> int:
    """The position of a worker's batch."""
    return seq * num_workers + worker


def count_before(worker: int, num_workers: int, position: int) -> int:
    """How many positions below `position` belong to `worker`.

    This is the first seq that a worker sends in a run resumed at `position`, and, for the first position that
    has no free slot, the seq up to which (exclusive) it has credit.
    """
    return max(0, -(-(position - worker) // num_workers))
