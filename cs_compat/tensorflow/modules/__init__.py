"""In the import path of the launchers' interpreter, whose programs import the parts as top-level names."""
