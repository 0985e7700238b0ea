"""The agent: runs beside every task of a Slurm job and answers for it to the launcher.

It is started by Slurm on each node, outside any container, and needs Python's standard library alone.
"""
