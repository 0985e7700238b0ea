"""YAML files of the toolkit and the strict loader that reads them."""
