"""Command line tools of the compiler."""
