"""Agents: a scheduler starts one for every task on the nodes, and it runs the task for the launcher.

`task.py` is the agent, which runs outside any container and needs only Python's standard library. `plan.py`,
`launch.py` and `job_loop.py` are the launcher's side; `starter.py` is the base class for schedulers.
"""
