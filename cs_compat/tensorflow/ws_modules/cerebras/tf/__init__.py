"""TensorFlow programs with weight streaming."""
