"""Models, layers and records of TensorFlow programs."""
