"""Containers as dictionaries of named dictionaries and arrays."""

from __future__ import annotations

import json
import os
import weakref
from typing import Any, Iterable, Iterator, Mapping

import numpy

from . import _native
from ._errors import NotFound

# Object types (daos_otype_t): a flat dictionary, and an array whose cell and chunk size its user keeps.
_KV_HASHED = 8
_ARRAY_ATTR = 12

# The directory of a container's names: no number that engines give out has this high half.
_DIRECTORY = (0x5059, 0)

# Bytes of an array in one dkey.
_CHUNK_BYTES = 1 << 20

_open: weakref.WeakSet[Container] = weakref.WeakSet()


def create(pool: str, container: str, *, kind: str = "object", object_class: str = "", chunk_size: int = 1 << 20,
           attach: str | None = None) -> None:
    """Creates a container, or finds the equal one that is there. ``kind`` is "object" or "posix"."""
    _native.create_container(pool, container, kind, object_class, chunk_size, attach)


def open(pool: str, container: str, *, read_only: bool = False, attach: str | None = None) -> Container:
    """Opens a container."""
    return Container(pool, container, read_only=read_only, attach=attach)


def close_all() -> None:
    """Closes what this process has open."""
    for container in list(_open):
        try:
            container.close()
        except Exception:
            # At the end of a process: engines drop the handles of a client that is gone.
            pass


def _raw(key: str | bytes) -> bytes:
    if isinstance(key, str):
        return key.encode()
    return bytes(key)


def _value(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _descr(value: Any) -> Any:
    """The description of a type, whose fields JSON has as lists: name, type, and a shape where there is one."""
    if not isinstance(value, list):
        return value
    return [(field[0], _descr(field[1]), *map(tuple, field[2:])) for field in value]


class Container(Mapping[str, Any]):
    """An open container. As a mapping it has its named dictionaries and arrays."""

    def __init__(self, pool: str, container: str, *, read_only: bool = False, attach: str | None = None) -> None:
        # The attach file that counts now counts also where this is used by another process.
        self._names = (pool, container, read_only, attach or os.environ.get("WEIR_ATTACH"))
        self.native: _native.Container | None = _native.Container(pool, container, read_only, self._names[3])
        self._directory: tuple[int, int] | None = None
        _open.add(self)

    def __reduce__(self) -> Any:
        return _reopen, self._names

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def _opened(self) -> _native.Container:
        if self.native is None:
            raise ValueError(f"container {self._names[1]} of pool {self._names[0]} is closed")
        return self.native

    @property
    def label(self) -> str:
        """Its label."""
        return self._opened.label

    @property
    def pool(self) -> str:
        """The label of its pool."""
        return self._opened.pool

    @property
    def kind(self) -> str:
        """ "object" or "posix"."""
        return self._opened.kind

    def close(self) -> None:
        """Gives the handle back. In a forked child of the process that opened it, forgets it."""
        native, self.native = self.native, None
        if native is not None:
            native.close()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self._names[0]}/{self._names[1]}"

    def __repr__(self) -> str:
        return f"<weir.Container {self}>"

    def _names_of(self) -> Dict:
        if self._directory is None:
            if self.kind != "object":
                raise ValueError(f"container {self} is a file system: use weir.FileSystem")
            self._directory = self._opened.object_id(_DIRECTORY, _KV_HASHED)
        return Dict(self, self._directory, "")

    def _enter(self, name: str, make: Any) -> Any:
        """The entry of a name; a new one where there is none, also when another client makes it at the same moment."""
        names = self._names_of()
        found = names.get(name)
        if found is None:
            entry = json.dumps(make()).encode()
            if self._opened.put(names.id, _raw(name), entry, True):
                found = entry
            else:
                found = names[name]
        return json.loads(found)

    def dict(self, name: str, values: Mapping[Any, Any] | None = None, *, object_class: str | None = None) -> Dict:
        """The dictionary of a name, a new one where there is none, with ``values`` added."""
        entry = self._enter(name, lambda: {"dict": self._opened.new_object(_KV_HASHED, object_class)})
        found = self._at(name, entry)
        if not isinstance(found, Dict):
            raise ValueError(f"{name!r} of container {self} is an array")
        if values:
            found.bput(values)
        return found

    def array(self, name: str, values: Any = None, *, shape: Any = None, dtype: Any = None,
              object_class: str | None = None) -> Array:
        """The array of a name; a new one where there is none, which needs ``values``, or shape and dtype."""
        given = None if values is None else numpy.asarray(values, dtype=dtype)
        if given is not None:
            shape, dtype = given.shape, given.dtype

        def make() -> Any:
            if shape is None or dtype is None:
                raise NotFound(f"container {self} has no array {name!r}: give values, or shape and dtype")
            kind = numpy.dtype(dtype)
            if kind.hasobject:
                raise TypeError(f"an array of {kind} has no bytes to be stored")
            whole = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
            chunk = max(1, _CHUNK_BYTES // max(1, kind.itemsize))
            return {"array": self._opened.new_object(_ARRAY_ATTR, object_class), "dtype": numpy.lib.format.dtype_to_descr(kind), "shape": whole,
                    "chunk": chunk}

        found = self._at(name, self._enter(name, make))
        if not isinstance(found, Array):
            raise ValueError(f"{name!r} of container {self} is a dictionary")
        if shape is not None:
            whole = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
            if found.shape != whole or found.dtype != numpy.dtype(dtype):
                raise ValueError(f"array {name!r} has shape {found.shape} and dtype {found.dtype}, not {whole} and {dtype}")
        if given is not None:
            found.write(given)
        return found

    def _at(self, name: str, entry: Any) -> Any:
        if "dict" in entry:
            return Dict(self, tuple(entry["dict"]), name)
        return Array(self, name, entry)

    def __getitem__(self, name: str) -> Any:
        entry = self._names_of().get(name)
        if entry is None:
            raise NotFound(f"container {self} has no {name!r}")
        return self._at(name, json.loads(entry))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._names_of().get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for key in self._names_of())

    def __len__(self) -> int:
        return len(self._names_of())

    def __delitem__(self, name: str) -> None:
        found = self[name]
        # The name first: what remains where the client ends between both is space, not a name of nothing.
        del self._names_of()[name]
        self._opened.destroy_object(found.id)


def _reopen(pool: str, container: str, read_only: bool, attach: str | None) -> Container:
    return Container(pool, container, read_only=read_only, attach=attach)


class Dict:
    """A dictionary in a container: keys and values are bytes; text is stored as UTF-8. No value is empty."""

    def __init__(self, container: Container, id: tuple[int, int], name: str) -> None:
        self.container, self.id, self.name = container, id, name

    @property
    def _native(self) -> _native.Container:
        return self.container._opened

    def put(self, key: str | bytes, value: Any) -> None:
        """Stores a value; one of ``None`` removes the key."""
        if value is None:
            self._native.remove(self.id, _raw(key))
        else:
            self._native.put(self.id, _raw(key), _value(value))

    def get(self, key: str | bytes, default: Any = None) -> Any:
        """The value of a key."""
        found = self._native.get(self.id, _raw(key))
        return default if found is None else found

    def pop(self, key: str | bytes, *default: Any) -> Any:
        """Removes a key, and returns the value that it had."""
        found = self.get(key)
        if found is not None and self._native.remove(self.id, _raw(key)):
            return found
        if default:
            return default[0]
        raise KeyError(key)

    def bput(self, values: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Stores many values, many at a time. Those of ``None`` are removed."""
        pairs = list(values.items() if isinstance(values, Mapping) else values)
        for key, value in pairs:
            if value is None:
                self._native.remove(self.id, _raw(key))
        stored = [(_raw(key), _value(value)) for key, value in pairs if value is not None]
        self._native.put_many(self.id, stored)

    def bget(self, keys: Any) -> Any:
        """Values of many keys, many at a time: of a dictionary, which is filled in, or of a list of keys, as a new one."""
        wanted = list(keys)
        found = self._native.get_many(self.id, [_raw(key) for key in wanted])
        into = keys if isinstance(keys, dict) else {}
        into.update(zip(wanted, found))
        return into

    update = bput

    def __getitem__(self, key: str | bytes) -> bytes:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str | bytes, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: str | bytes) -> None:
        if not self._native.remove(self.id, _raw(key)):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (str, bytes)) and self.get(key) is not None

    def __iter__(self) -> Iterator[bytes]:
        pages = self._native.keys(self.id)
        while (page := pages.page()) is not None:
            yield from page

    keys = __iter__

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, a page at a time. A key that is removed meanwhile is left out."""
        pages = self._native.keys(self.id)
        while (page := pages.page()) is not None:
            for key, value in zip(page, self._native.get_many(self.id, page)):
                if value is not None:
                    yield key, value

    def values(self) -> Iterator[bytes]:
        """Values, a page at a time."""
        return (value for _, value in self.items())

    def dump(self) -> dict[bytes, bytes]:
        """All keys and values."""
        return dict(self.items())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __repr__(self) -> str:
        return f"<weir.Dict {self.name!r} of {self.container}>"


class Array:
    """An array in a container, with shape and type of a NumPy array. What was never written is zero."""

    def __init__(self, container: Container, name: str, entry: Mapping[str, Any]) -> None:
        self.container, self.name = container, name
        self.id: tuple[int, int] = tuple(entry["array"])
        self.dtype = numpy.lib.format.descr_to_dtype(_descr(entry["dtype"]))
        self.shape: tuple[int, ...] = tuple(entry["shape"])
        self._cells = (self.dtype.itemsize, int(entry["chunk"]))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(numpy.prod(self.shape, dtype=object))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def _row(self) -> int:
        return int(numpy.prod(self.shape[1:], dtype=object))

    def read(self) -> numpy.ndarray:
        """All of it."""
        return self._rows(0, self.shape[0]) if self.shape else self._elements(0, 1).reshape(())

    def write(self, values: Any) -> None:
        """Writes all of it."""
        given = numpy.ascontiguousarray(numpy.broadcast_to(numpy.asarray(values, dtype=self.dtype), self.shape))
        self._put(0, given)

    def _elements(self, index: int, count: int) -> numpy.ndarray:
        data = self.container._opened.read_array(self.id, self._cells, index, count)
        return numpy.frombuffer(bytearray(data), dtype=self.dtype)

    def _rows(self, start: int, stop: int) -> numpy.ndarray:
        found = self._elements(start * self._row, (stop - start) * self._row)
        return found.reshape((stop - start, *self.shape[1:]))

    def _put(self, index: int, values: numpy.ndarray) -> None:
        if values.size:
            data = numpy.ascontiguousarray(values).reshape(-1).view(numpy.uint8)
            self.container._opened.write_array(self.id, self._cells, index, data)

    def _span(self, key: Any) -> tuple[int, int, Any]:
        """The rows that an index is in, and the index within them."""
        rest = key if isinstance(key, tuple) else (key,)
        if not self.shape:
            return 0, 0, key
        first = rest[0] if rest else Ellipsis
        if isinstance(first, (int, numpy.integer)) and not isinstance(first, bool):
            row = int(first) + (self.shape[0] if first < 0 else 0)
            if not 0 <= row < self.shape[0]:
                raise IndexError(f"index {first} is out of bounds for an axis of {self.shape[0]}")
            return row, row + 1, (0, *rest[1:])
        if isinstance(first, slice):
            rows = range(*first.indices(self.shape[0]))
            if not rows:
                return 0, 0, (slice(0, 0), *rest[1:])
            low, high = min(rows), max(rows)
            # Of what is read, the same rows in the same order.
            stop = rows[-1] - low + (1 if rows.step > 0 else -1)
            within = slice(rows[0] - low, stop if stop >= 0 else None, rows.step)
            return low, high + 1, (within, *rest[1:])
        return 0, self.shape[0], key

    def __getitem__(self, key: Any) -> Any:
        if not self.shape:
            return self.read()[key]
        start, stop, within = self._span(key)
        return self._rows(start, stop)[within]

    def __setitem__(self, key: Any, values: Any) -> None:
        if not self.shape:
            return self.write(values)
        start, stop, within = self._span(key)
        is_whole = isinstance(key, (int, numpy.integer)) or (isinstance(key, slice) and key.step in (None, 1))
        # Rows that are written in part are read before: another client's change of them meanwhile is lost.
        rows = (numpy.empty((stop - start, *self.shape[1:]), dtype=self.dtype) if is_whole else self._rows(start, stop))
        rows[within] = values
        self._put(start * self._row, rows)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        if copy is False:
            raise ValueError("an array in a container is always copied")
        found = self.read()
        return found if dtype is None else found.astype(dtype)

    def __repr__(self) -> str:
        return f"<weir.Array {self.name!r} of {self.container}, shape {self.shape}, dtype {self.dtype}>"
