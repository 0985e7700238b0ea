"""Compile a rewritten step for a mode of execution: pipelined, or weight streaming."""
