"""Where the tasks of a job run: `base` says what a scheduler is, one module each implements one."""
