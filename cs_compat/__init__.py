"""Import names of the original stack, for programs inside the launchers, and names that TensorFlow removed.

There is a folder for each framework, and one for the appliance; `original_modules` is the table of the names.
The wrappers in `csrun/wrappers` put `modules` into the import path of programs; nothing else does.
"""
