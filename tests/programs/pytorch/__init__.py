"""Networks and training steps of PyTorch programs."""
