"""The names that programs of the original stack import inside the launchers, and those TensorFlow has lost.

One folder for each framework. Its `modules` come into the import path by `csrun/wrappers`, and there alone.
"""
