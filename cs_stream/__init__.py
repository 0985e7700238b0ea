"""The data plane: workers stream batches to the CS system.

    batches      the layout of a batch, and its arrays as bytes
    sender       the worker's side: `Sender`
    receiver     the system's side: `Receiver`, and what it gives: `BatchRing`, `ReadySpan`
    errors       all that either side raises
    testing      numbered batches, and runs over loopback, for tests

Beneath them, without any I/O: `frames` (the bytes), `messages` (their JSON), `protocol` (the two ends of a
connection), `run_state` (the order of the batches). With it: `sockets`, `link` and `session` (one connection
each), `ring` (the slots of a run).
"""
