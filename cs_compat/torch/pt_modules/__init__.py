"""In the import path of `python-pt` alone: libraries take another branch where they find these names."""
