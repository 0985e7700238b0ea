"""What a site sets once for all its users: launcher, default job, container, the CS system's resource.

`model` is plain data and costs nothing to import; `loading` puts a `Site` together from the site file and the
environment; `file` (pydantic, YAML) is imported only where there is a site file.
"""
