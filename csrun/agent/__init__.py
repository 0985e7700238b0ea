"""The agent of a task in a Slurm job: starts the task, supervises it and reports to the launcher.

Slurm starts it on the nodes, outside any container, and it needs only Python's standard library.
"""
