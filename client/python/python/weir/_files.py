"""File systems in containers."""

from __future__ import annotations

import errno
import io
import os
import threading
from typing import Any, Sequence

from . import _native
from ._objects import Container

Path = "str | bytes | os.PathLike[Any]"


def _raw(path: Any) -> bytes:
    return os.fsencode(path)


class File(io.RawIOBase):
    """An open file. What is written is stable when ``write`` returns."""

    def __init__(self, native: _native.File, name: str, *, readable: bool, writable: bool, append: bool) -> None:
        super().__init__()
        self._native, self.name = native, name
        self._readable, self._writable, self._append = readable, writable, append
        self._offset = 0
        self._lock = threading.Lock()

    def readable(self) -> bool:
        return self._readable

    def writable(self) -> bool:
        return self._writable

    def seekable(self) -> bool:
        return True

    def _check(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(f"the file is not open for {what}")

    def pread(self, count: int, offset: int) -> bytes:
        """Reads at an offset."""
        self._check(self._readable, "reading")
        return self._native.read(offset, count)

    def pwrite(self, data: Any, offset: int) -> int:
        """Writes at an offset."""
        self._check(self._writable, "writing")
        return self._native.write(offset, data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with self._lock:
            data = self.pread(len(view), self._offset)
            self._offset += len(data)
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        with self._lock:
            self._check(self._readable, "reading")
            data = self.pread(max(0, self._native.size() - self._offset), self._offset)
            self._offset += len(data)
        return data

    def write(self, data: Any) -> int:
        with self._lock:
            self._check(self._writable, "writing")
            if self._append:
                self._offset = self._native.size()
            count = self.pwrite(data, self._offset)
            self._offset += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with self._lock:
            self._check(True, "")
            base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._offset, os.SEEK_END: self._native.size}
            if whence not in base:
                raise ValueError(f"invalid whence {whence}")
            target = base[whence]() + offset
            if target < 0:
                raise OSError(errno.EINVAL, "a negative offset")
            self._offset = target
        return target

    def tell(self) -> int:
        return self._offset

    def truncate(self, size: int | None = None) -> int:
        self._check(self._writable, "writing")
        wanted = self._offset if size is None else size
        self._native.truncate(wanted)
        return wanted


class FileSystem:
    """The file system of a container of type "posix", by paths from its root."""

    def __init__(self, container: Container | str, label: str | None = None, *, attach: str | None = None) -> None:
        if not isinstance(container, Container):
            if label is None:
                raise TypeError("give a container, or the names of pool and container")
            container = Container(container, label, attach=attach)
        self.container = container
        self._native = _native.FileSystem(container._opened)

    def __reduce__(self) -> Any:
        return FileSystem, (self.container,)

    def stat(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        """As ``os.stat``."""
        found = self.info(path, follow_symlinks=follow_symlinks)
        seconds = [found[name] // 10**9 for name in ("atime_ns", "mtime_ns", "ctime_ns")]
        fields = [found["mode"], found["ino"], 0, 1, found["uid"], found["gid"], found["size"], *seconds]
        return os.stat_result(fields)

    def info(self, path: Any, *, follow_symlinks: bool = True) -> dict[str, Any]:
        """Attributes by their names: name, type, size, mode, uid, gid, ino, mtime_ns, ctime_ns, atime_ns."""
        return self._native.stat(_raw(path), follow_symlinks)

    def scandir(self, path: Any = "/") -> list[dict[str, Any]]:
        """Attributes of all entries of a directory, as ``info``."""
        return self._native.list(_raw(path))

    def listdir(self, path: Any = "/") -> list[str]:
        """As ``os.listdir``."""
        return [os.fsdecode(entry["name"]) for entry in self.scandir(path)]

    def exists(self, path: Any) -> bool:
        """Whether a path leads to something."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: Any, mode: int = 0o755) -> None:
        """As ``os.mkdir``."""
        self._native.mkdir(_raw(path), mode)

    def makedirs(self, path: Any, mode: int = 0o755, exist_ok: bool = False) -> None:
        """As ``os.makedirs``."""
        names = [name for name in _raw(path).split(b"/") if name]
        for count in range(1, len(names) + 1):
            try:
                self._native.mkdir(b"/".join(names[:count]), mode)
            except FileExistsError:
                if count == len(names) and not exist_ok:
                    raise

    def unlink(self, path: Any) -> None:
        """As ``os.unlink``."""
        self._native.unlink(_raw(path))

    def rmdir(self, path: Any) -> None:
        """As ``os.rmdir``."""
        self._native.rmdir(_raw(path))

    def rmtree(self, path: Any) -> None:
        """Removes a file, or a directory with all that is in it."""
        self._native.remove_tree(_raw(path))

    def rename(self, source: Any, destination: Any) -> None:
        """As ``os.rename``."""
        self._native.rename(_raw(source), _raw(destination))

    def symlink(self, target: Any, path: Any) -> None:
        """As ``os.symlink``."""
        self._native.symlink(_raw(target), _raw(path))

    def readlink(self, path: Any) -> str:
        """As ``os.readlink``."""
        found = self.info(path, follow_symlinks=False)
        if "target" not in found:
            raise OSError(errno.EINVAL, "not a symbolic link", os.fsdecode(_raw(path)))
        return os.fsdecode(found["target"])

    def chmod(self, path: Any, mode: int) -> None:
        """As ``os.chmod``."""
        self._native.chmod(_raw(path), mode)

    def space(self) -> tuple[int, int, int]:
        """Total, used and free bytes."""
        return self._native.space()

    def open(self, path: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
             errors: str | None = None, newline: str | None = None) -> Any:
        """As the built-in ``open``."""
        kind = mode.replace("b", "").replace("t", "")
        base, plus = kind.replace("+", ""), "+" in kind
        if base not in ("r", "w", "a", "x") or ("b" in mode and "t" in mode) or len(kind) > 2:
            raise ValueError(f"invalid mode {mode!r}")
        native = self._native.open(_raw(path), base != "r", base == "x", base == "w")
        raw = File(native, os.fsdecode(_raw(path)), readable=plus or base == "r", writable=plus or base != "r",
                   append=base == "a")
        if buffering == 0:
            if "b" not in mode:
                raise ValueError("text can't be unbuffered")
            return raw
        size = buffering if buffering > 1 else 1 << 20
        if raw.readable() and raw.writable():
            buffered: Any = io.BufferedRandom(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size) if raw.writable() else io.BufferedReader(raw, size)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def read_files(self, paths: Sequence[Any]) -> list[bytes]:
        """The contents of files, many at a time."""
        return self._native.read_files([_raw(path) for path in paths])
