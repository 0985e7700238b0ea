"""The simulated CS system: a server reached by IP and port, its engine, and the client.

A chief and its workers use `cs_system.client`; the command `cs_system serve` runs the server.
"""

import os

# gRPC reads this at import. Without it, every DataLoader worker that a chief forks writes a line to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
