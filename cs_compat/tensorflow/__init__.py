"""TensorFlow programs: estimators and helpers of the original stack, and removed names of TensorFlow."""
