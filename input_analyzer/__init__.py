"""Measures input pipelines, and recommends changes and a number of nodes, tasks and CPUs for training."""
