"""TensorFlow programs."""
