"""The names that PyTorch programs of the original stack import inside the launchers."""
