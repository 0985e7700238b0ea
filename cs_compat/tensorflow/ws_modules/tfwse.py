"""Programs that find this name, which `python-ws` alone has, take their branch for weight streaming."""
