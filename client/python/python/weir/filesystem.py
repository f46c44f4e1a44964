"""fsspec: ``weir://POOL/CONTAINER/PATH``, which pandas, xarray, zarr and others read and write."""

from __future__ import annotations

import datetime
import errno
import os
from typing import Any

from fsspec.spec import AbstractFileSystem

from ._files import FileSystem

_KINDS = {"file": "file", "directory": "directory", "link": "link", "other": "other"}


class WeirFileSystem(AbstractFileSystem):
    """Files of containers of type "posix". ``attach`` names an attach file other than the default. With ``auto_mkdir``, a file that is
    written gets the directories that it is in, as in stores that have none."""

    protocol = ("weir", "daos")
    root_marker = ""

    def __init__(self, attach: str | None = None, auto_mkdir: bool = True, **options: Any) -> None:
        super().__init__(attach=attach, auto_mkdir=auto_mkdir, **options)
        self._attach, self._auto_mkdir = attach, auto_mkdir
        self._mounted: dict[tuple[str, str], FileSystem] = {}

    def _place(self, path: str) -> tuple[FileSystem, str]:
        """The file system that a path is in, and the path in it."""
        parts = self._strip_protocol(path).split("/", 2)
        if len(parts) < 2 or not parts[0] or not parts[1]:
            raise OSError(errno.EINVAL, "a path is weir://POOL/CONTAINER/PATH", path)
        names = (parts[0], parts[1])
        mounted = self._mounted.get(names)
        if mounted is None:
            mounted = self._mounted[names] = FileSystem(*names, attach=self._attach)
        return mounted, "/" + (parts[2] if len(parts) > 2 else "")

    @staticmethod
    def _entry(name: str, found: dict[str, Any]) -> dict[str, Any]:
        kind = _KINDS[found["type"]]
        entry = {"name": name, "type": kind, "size": found["size"] if kind == "file" else 0}
        entry.update({key: found[key] for key in ("mode", "uid", "gid", "ino", "mtime_ns", "ctime_ns")})
        entry["mtime"] = found["mtime_ns"] / 1e9
        if kind == "link":
            entry["destination"] = os.fsdecode(found["target"])
        return entry

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        files, within = self._place(path)
        return self._entry(name, files.info(within))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        name = self._strip_protocol(path).rstrip("/")
        files, within = self._place(path)
        about = files.info(within)
        if about["type"] != "directory":
            found = [self._entry(name, about)]
        else:
            entries = files.scandir(within)
            found = [self._entry(f"{name}/{os.fsdecode(entry['name'])}", entry) for entry in entries]
            found.sort(key=lambda entry: entry["name"])
        return found if detail else [entry["name"] for entry in found]

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        files, within = self._place(path)
        if create_parents and within.rstrip("/").count("/") > 1:
            files.makedirs(within.rstrip("/").rsplit("/", 1)[0], exist_ok=True)
        files.mkdir(within)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        files, within = self._place(path)
        files.makedirs(within, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        files, within = self._place(path)
        files.rmdir(within)

    def rm_file(self, path: str) -> None:
        files, within = self._place(path)
        files.unlink(within)

    _rm = rm_file

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if recursive and maxdepth is None and isinstance(path, str) and not _has_magic(path):
            files, within = self._place(path)
            files.rmtree(within)
        else:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        (files, source), (others, destination) = self._place(path1), self._place(path2)
        if files is others:
            files.rename(source, destination)
        else:
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return self.makedirs(path2, exist_ok=True)
        self.pipe_file(path2, self.cat_file(path1))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        files, within = self._place(path)
        if start is None and end is None:
            return files.read_files([within])[0]
        with files.open(within, "rb", buffering=0) as file:
            size = files.info(within)["size"]
            first = 0 if start is None else start if start >= 0 else max(0, size + start)
            last = size if end is None else end if end >= 0 else size + end
            return file.pread(max(0, last - first), first)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **_: Any) -> None:
        with self._opened(path, "xb" if mode == "create" else "wb", 0) as file:
            if len(value):
                file.pwrite(value, 0)

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        return self._opened(path, mode, block_size if isinstance(block_size, int) else -1)

    def _opened(self, path: str, mode: str, buffering: int) -> Any:
        files, within = self._place(path)
        try:
            return files.open(within, mode, buffering=buffering)
        except FileNotFoundError:
            if mode.startswith("r") or not self._auto_mkdir or within.count("/") < 2:
                raise
        files.makedirs(within.rsplit("/", 1)[0], exist_ok=True)
        return files.open(within, mode, buffering=buffering)

    def created(self, path: str) -> datetime.datetime:
        return self._moment(path, "ctime_ns")

    def modified(self, path: str) -> datetime.datetime:
        return self._moment(path, "mtime_ns")

    def _moment(self, path: str, name: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)[name] / 1e9, tz=datetime.timezone.utc)


def _has_magic(path: str) -> bool:
    return any(letter in path for letter in "*?[")
