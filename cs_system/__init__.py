"""The simulated CS system: a server that is reached by IP and port, its engine, and the client.

A chief and its workers use `cs_system.client`; the command `cs_system serve` runs the server.
"""

import os

# gRPC reads it when it is imported. Without it, each worker of a DataLoader that a chief forks writes a line.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
