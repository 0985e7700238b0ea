"""The probe that `csrun doctor` runs on every node: it checks paths and reports to the doctor.

It is run as a script (`python -I -S probe.py`) and needs only the standard library. Its arguments are a file
that must be visible, the port of the doctor, the doctor's secret, and further paths that must exist.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

CONNECT_LIMIT_S = 5.0


def main(token_file: str, port: str, secret: str, *paths: str) -> None:
    """Check the paths and send the result to the doctor as one line of JSON."""
    result = {
        "secret": secret,
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "shared": Path(token_file).exists(),
        "missing": [path for path in paths if not Path(path).exists()],
    }
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    with socket.create_connection((host, int(port)), CONNECT_LIMIT_S) as connection:
        # The time is read last: the doctor compares it with the time of arrival.
        connection.sendall(json.dumps({**result, "time_s": time.time()}).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
