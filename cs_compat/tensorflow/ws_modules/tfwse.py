"""Programs that find this name, which only `python-ws` has, take their branch for weight streaming."""
