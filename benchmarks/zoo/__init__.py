"""Architectures of transformers, timm and Keras, trained tiny on the CS system: `make zoo`."""
