"""In the import path of `python-ws` alone: programs take another branch where they find these names."""
