"""The simulated CS system: a server that is reached by IP and port, its engine, and the client.

A chief and its workers use `cs_system.client`; the command `cs_system serve` runs the server.
"""
