"""The input of a TensorFlow program: reading it, its position, and its analysis."""
