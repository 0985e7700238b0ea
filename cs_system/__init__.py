"""The simulated CS system: server, engine, client."""
