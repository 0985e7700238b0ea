"""Analysis of tf.data pipelines; the only part of the analyzer that imports TensorFlow."""
