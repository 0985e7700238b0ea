"""In the import path of the flavour's interpreter, whose programs import the parts as top-level names."""
