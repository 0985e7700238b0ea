"""What the compiler makes of a rewritten step for each mode of execution."""
