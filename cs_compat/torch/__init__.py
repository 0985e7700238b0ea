"""PyTorch programs: changes to libraries, placeholders for missing packages, and names of `torch_xla`."""
