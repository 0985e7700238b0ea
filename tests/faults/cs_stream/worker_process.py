"""A worker as a separate process, with one scheduled fault: `worker_process.py '<JSON>'`.

Prints how the run ended; the exit code is the one of the error.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from cs_stream.errors import StreamingError
from cs_stream.sender import Sender, WorkerIdentity
from tests.loopback import SMALL, numbered_input


def main() -> int:
    order: dict[str, Any] = json.loads(sys.argv[1])
    identity = WorkerIdentity("job", "a secret", order["worker"], order["num_workers"], "digest")
    whole = numbered_input(SMALL, order["worker"], order["num_workers"], order["count"])

    def make_batches(skip: int) -> Iterator[tuple[Any, ...]]:
        for seq, batch in enumerate(whole(skip), start=skip):
            if seq == order.get("signal_at"):
                del order["signal_at"]
                os.kill(os.getpid(), signal.Signals[order["signal"]])
            yield batch

    sender = Sender((order["host"], order["port"]), identity, SMALL, connect_timeout_s=30)
    try:
        summary = sender.run(make_batches)
    except StreamingError as error:
        print(f"{type(error).__name__}: {error}")
        return error.exit_code
    print(f"{summary.end} reconnects={summary.reconnects}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
