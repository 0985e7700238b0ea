"""The server process of a simulated CS system."""
