"""The input of a program: loaders, the parts that workers read, and the way to the workers."""
