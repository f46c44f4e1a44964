"""Weir storage clusters in Python.

A container of type "object" is a dictionary of named dictionaries and arrays::

    container = weir.open("tank", "objects")
    cities = container.dict("stadium", {"Barcelona": "Camp Nou"})
    cities["London"] = "Wembley"
    samples = container.array("samples", numpy.arange(12.0).reshape(3, 4))

A container of type "posix" is a file system: ``weir.FileSystem``, ``weir.filesystem.WeirFileSystem`` for fsspec (``weir://``), and
``weir.torch`` for PyTorch.

Calls wait without the interpreter's lock. What is open can be used in a forked child, which reaches the engines by itself, and can
be pickled by its names.
"""

import atexit as _atexit

from . import _native
from ._errors import Error, NotFound
from ._objects import Array, Container, Dict, close_all, create, open
from ._files import File, FileSystem

__all__ = ["Array", "Container", "Dict", "Error", "File", "FileSystem", "NotFound", "create", "open"]


def _end() -> None:
    close_all()
    _native.stop()


_atexit.register(_end)
