"""TensorFlow programs, those for releases before 1.8 of the original stack too."""
