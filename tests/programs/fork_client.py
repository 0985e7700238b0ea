"""A task whose program runs in a fork of a server: `fork_client.py SOCKET python PROGRAM ARGUMENT...`.

The program has the environment, directory, CPUs and output of this process, which ends with its exit code. If
one of them is killed, the other is.
"""

import array
import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    request = {
        "words": sys.argv[3:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than this program runs
        "cpus": sorted(os.sched_getaffinity(0)),
    }
    descriptors = array.array("i", [0, 1, 2])
    connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    connection.sendall(json.dumps(request).encode() + b"\n")
    code = connection.makefile().readline()
if not code:
    os.kill(os.getpid(), signal.SIGKILL)
os._exit(int(code))
