"""Records a whole training step of a PyTorch program: forward, backward, update, as one graph."""
