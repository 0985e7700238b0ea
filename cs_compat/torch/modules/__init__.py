"""In the import path of `python` and `python-pt`."""
