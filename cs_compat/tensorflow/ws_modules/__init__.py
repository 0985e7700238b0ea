"""In the import path of `python-ws` only: programs take another branch if they find these names."""
