"""Tasks of a job, by the names of the library."""
