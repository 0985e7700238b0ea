"""The names of weight streaming: the same classes with another execution mode."""
