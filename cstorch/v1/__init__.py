"""The interfaces of releases 1.x: sessions, and the runner of a `run.py`."""
