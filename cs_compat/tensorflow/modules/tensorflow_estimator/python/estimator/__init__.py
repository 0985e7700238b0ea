"""Module paths of the removed package tensorflow_estimator."""
