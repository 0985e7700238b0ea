"""The input of a program: loaders, the share of each worker, and the transfer to the workers."""
