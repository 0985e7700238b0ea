"""What AutoGraph converts is kept in a folder: many processes trace the same programs, and converting is half
of that work.
"""

import os
import pickle
import sys
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tensorflow.python.autograph.impl import api
from tensorflow.python.autograph.pyct.origin_info import LineLocation
from tensorflow.python.autograph.pyct.transpiler import _PythonFnFactory

PREFIX = "__autograph_generated_file"
"""Of the files that AutoGraph generates; TensorFlow leaves these out where it tells a stack."""


def keep_in(folder):
    """AutoGraph looks into the folder before it converts a function, here and in forked processes."""
    folder.mkdir(parents=True, exist_ok=True)
    api._TRANSPILER = Kept(folder)


class Kept(api.PyToTF):
    """AutoGraph, whose cache of converted functions is filled from a folder: two files for each.

    As in that cache, functions with the same code are one.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def transform_function(self, fn, user_context):
        options = self.get_caching_key(user_context)
        if self._cache.has(fn, options):
            return super().transform_function(fn, user_context)
        file = self.folder / f"{PREFIX}_{digest(fn, options)}.py"
        if file.with_suffix(".origins").exists():
            self._cache[fn][options] = restored(file, fn, self.get_extra_locals())
            return super().transform_function(fn, user_context)
        converted = super().transform_function(fn, user_context)
        keep(file, self._cache[fn][options])
        return converted


def digest(fn, options):
    """Name of a function, wherever its module is imported, with some options."""
    code, features = fn.__code__, sorted(feature.name for feature in options.optional_features)
    flags = options.recursive, options.user_requested, options.internal_convert_user_code, features
    place = os.path.realpath(code.co_filename), code.co_qualname, [*code.co_positions()], code.co_freevars
    return sha256(repr((place, flags)).encode()).hexdigest()


def keep(file, factory):
    origins = {LineLocation(str(file), line.lineno): origin for line, origin in factory.source_map.items()}
    outer = factory._unbound_factory.__qualname__.partition(".")[0]
    write(file, Path(factory.module.__file__).read_bytes())
    write(file.with_suffix(".origins"), pickle.dumps((factory._name, outer, origins)))


def write(file, content):
    """Another process may write the same at the same time."""
    new = file.with_name(f"{os.getpid()}.{file.name}")
    new.write_bytes(content)
    new.replace(file)


def restored(file, fn, extra_locals):
    name, outer, origins = pickle.loads(file.with_suffix(".origins").read_bytes())
    spec = spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    factory = _PythonFnFactory(name, fn.__code__.co_freevars, extra_locals)
    factory._unbound_factory = getattr(module, outer)()
    factory.module = module
    factory.source_map = {line: moved(origin, fn) for line, origin in origins.items()}
    return factory


def moved(origin, fn):
    """An origin by the name under which this process has imported the function's file."""
    return origin._replace(loc=origin.loc._replace(filename=fn.__code__.co_filename))
