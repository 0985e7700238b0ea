"""The names of weight streaming: the same classes, the execution is a setting of the run."""
