"""In the import path of `python-pt` only: libraries take another branch if they find these names."""
