"""The data plane: workers stream batches to the CS system."""
