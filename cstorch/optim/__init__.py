"""Optimizers, and schedules of what they go by."""
