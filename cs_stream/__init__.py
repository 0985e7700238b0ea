"""The data plane: workers stream batches to the CS system.

    batches      the layout of a batch, and its arrays as bytes
    sender       the worker's side: `Sender`
    receiver     the system's side: `Receiver`, and the `BatchRing` and `ReadySpan` that it returns
    errors       all errors of both sides

Lower layers without any I/O: `frames` (the bytes), `messages` (their JSON), `protocol` (the two ends of a
connection), `run_state` (the order of the batches). With I/O: `link` and `session` (a connection
each), `ring` (the slots of a run).
"""
