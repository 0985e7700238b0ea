"""Module paths of the removed package tensorflow_estimator, for imports of single classes from it."""
