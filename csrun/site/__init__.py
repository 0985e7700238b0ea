"""Settings of a site for all its users: launcher, default layout, container, resource of the CS system.

`model` is plain data and cheap to import; `loading` builds a `Site` from the site file and the environment;
`file`, which imports pydantic and YAML, is imported only if a site file exists.
"""
