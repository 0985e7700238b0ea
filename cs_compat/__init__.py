"""Import names of the original stack, for programs inside the launchers, and names that TensorFlow removed.

There is a folder for each framework, and one for the appliance. The wrappers in `csrun/wrappers` put their
`modules` into the import path of programs; nothing else does.
"""
