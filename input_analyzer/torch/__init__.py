"""What the analyzer knows of PyTorch's DataLoader; the only part of it that imports torch."""
