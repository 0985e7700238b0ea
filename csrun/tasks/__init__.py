"""Tasks of a job: role, environment, command and processes."""
