"""The launchers' command lines, one module each."""
