"""Reads the pipeline of a tf.data Dataset; imports TensorFlow."""
