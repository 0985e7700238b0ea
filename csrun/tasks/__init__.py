"""A task of a job: its role, its environment, its command and its processes."""
