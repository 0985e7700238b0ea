"""Helpers of programs of the original stack."""
