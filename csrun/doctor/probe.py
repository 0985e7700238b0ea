"""The probe that `csrun doctor` runs on every node: it checks paths and reports to the doctor.

It is run as a script (`python -I -S probe.py`), with the standard library and the toolkit. Its arguments are
those of `csrun.tasks.place.load_reader`, a file that must be visible, host and port of the doctor, the
digest of its certificate, and further paths that must exist. Its environment has the doctor's secret.
"""

import os
import socket
import sys
import time
from pathlib import Path

CONNECT_LIMIT_S = 5.0
SECRET_VARIABLE = "CSRUN_DOCTOR_SECRET"


def main(
    folder: str, reader: str, shared_file: str, host: str, port: str, certificate: str, *paths: str
) -> None:
    """Check the paths and send the result to the doctor as one line of JSON."""
    from cs_toolkit.network.frames import JsonLines
    from cs_toolkit.security.tls_connection import connect_pinned
    from csrun.tasks.place import load_reader

    place = load_reader(folder, reader)(os.environ)
    result = {
        "secret": os.environ[SECRET_VARIABLE],
        "node": place.node if place and place.node else socket.gethostname(),
        "shared": Path(shared_file).exists(),
        "missing": [path for path in paths if not Path(path).exists()],
    }
    address = place.launcher_host if place and place.launcher_host else host
    with connect_pinned((address, int(port)), CONNECT_LIMIT_S, certificate) as connection:
        # The time is read last: the doctor compares it with the time of arrival.
        connection.send([JsonLines.encode({**result, "time_s": time.time()})])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).absolute().parents[2]))
    main(*sys.argv[1:])
