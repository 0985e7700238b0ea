"""What `csrun doctor` runs on every node: looks around, connects back, and says what it has seen.

Runs alone (`python -I -S probe.py`), with the standard library. Arguments: a file that must be visible, the
port of the doctor, its secret, and further paths that must be there.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

CONNECT_LIMIT_S = 5.0


def main(token_file: str, port: str, secret: str, *paths: str) -> None:
    """Sends one line of JSON to the doctor."""
    seen = {
        "secret": secret,
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "shared": Path(token_file).exists(),
        "missing": [path for path in paths if not Path(path).exists()],
    }
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    with socket.create_connection((host, int(port)), CONNECT_LIMIT_S) as link:
        # As late as possible: the doctor compares it with the time of arrival.
        link.sendall(json.dumps({**seen, "time_s": time.time()}).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
