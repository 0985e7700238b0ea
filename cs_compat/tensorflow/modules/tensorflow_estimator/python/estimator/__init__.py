"""See `tensorflow_estimator`."""
