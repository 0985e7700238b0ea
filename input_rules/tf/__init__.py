"""What the analyzer knows of tf.data; the only part of it that imports TensorFlow."""
