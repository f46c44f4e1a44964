"""PyTorch: data sets of the files of a container, and checkpoints in one. The names and arguments are those of ``pydaos.torch``."""

from __future__ import annotations

import concurrent.futures
import io
import math
import os
from typing import Any, Callable, Iterator

from torch.utils.data import Dataset as _Dataset
from torch.utils.data import IterableDataset as _IterableDataset
from torch.utils.data import get_worker_info

from ._files import FileSystem

# Bytes of a checkpoint that are written by one thread at a time, and such parts that are under way.
_CHUNK = 8 << 20
_CHUNKS = 4


def _unchanged(data: bytes) -> Any:
    return data


class _Files:
    """The files below a directory, in the order of their paths."""

    def __init__(self, pool: str, cont: str, path: str | None, attach: str | None) -> None:
        self.files = FileSystem(pool, cont, attach=attach)
        self.paths: list[str] = []
        self.sizes: list[int] = []
        ahead = [(path or "").strip("/")]
        found: list[tuple[str, int]] = []
        while ahead:
            directory = ahead.pop()
            for entry in self.files.scandir(directory):
                below = f"{directory}/{os.fsdecode(entry['name'])}"
                if entry["type"] == "directory":
                    ahead.append(below)
                elif entry["type"] == "file":
                    found.append((below, entry["size"]))
        found.sort()
        for below, size in found:
            self.paths.append(below)
            self.sizes.append(size)

    def read(self, numbers: list[int]) -> list[bytes]:
        return self.files.read_files([self.paths[number] for number in numbers])


class Dataset(_Dataset):
    """The files below a path, by number: each is read whole and handed to ``transform_fn``.

    ``readdir_batch_size`` and ``dir_cache_size`` are accepted for programs for DAOS: a listing brings a thousand entries with their
    attributes, and directories are listed once.
    """

    def __init__(self, pool: str, cont: str, path: str | None = None, transform_fn: Callable[[bytes], Any] = _unchanged,
                 readdir_batch_size: int = 128, dir_cache_size: int = 0, attach: str | None = None) -> None:
        super().__init__()
        self._transform = transform_fn
        self._found = _Files(pool, cont, path, attach)

    def __len__(self) -> int:
        return len(self._found.paths)

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._transform(self._found.read([index])[0])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Many files, many at a time."""
        return [self._transform(data) for data in self._found.read(list(indices))]

    def worker_init(self, worker_id: int) -> None:
        """For a data loader's ``worker_init_fn``. A worker reaches the engines by itself, with nothing to be done."""


class IterableDataset(_IterableDataset):
    """The files below a path, one after another, ``batch_size`` of them read ahead. Workers of a data loader have a part each."""

    def __init__(self, pool: str, cont: str, path: str | None = None, transform_fn: Callable[[bytes], Any] = _unchanged,
                 readdir_batch_size: int = 128, batch_size: int = 32, dir_cache_size: int = 0,
                 attach: str | None = None) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError("batch_size is at least 1")
        self._transform, self._batch = transform_fn, batch_size
        self._found = _Files(pool, cont, path, attach)

    def __len__(self) -> int:
        return len(self._found.paths)

    def __iter__(self) -> Iterator[Any]:
        first, last = 0, len(self)
        worker = get_worker_info()
        if worker is not None:
            share = math.ceil(last / worker.num_workers)
            first = min(last, worker.id * share)
            last = min(last, first + share)
        for start in range(first, last, self._batch):
            numbers = list(range(start, min(last, start + self._batch)))
            for data in self._found.read(numbers):
                yield self._transform(data)

    def worker_init(self, worker_id: int) -> None:
        """As that of ``Dataset``."""


class _Writer(io.RawIOBase):
    """A file of a checkpoint that is being written: in large parts, several at a time. Whole when ``close`` has returned."""

    def __init__(self, file: Any, chunk: int, chunks: int, workers: int) -> None:
        super().__init__()
        self._file, self._chunk, self._limit = file, chunk, chunks
        self._threads = concurrent.futures.ThreadPoolExecutor(max_workers=workers)
        self._under_way: set[concurrent.futures.Future[int]] = set()
        self._part = bytearray()
        self._offset = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._offset + len(self._part)

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._chunk):
            self._part += view[start : start + self._chunk]
            if len(self._part) >= self._chunk:
                self._send()
        return len(view)

    def _send(self) -> None:
        if len(self._under_way) >= self._limit:
            self._wait(concurrent.futures.FIRST_COMPLETED)
        part, self._part = self._part, bytearray()
        self._under_way.add(self._threads.submit(self._file.pwrite, part, self._offset))
        self._offset += len(part)

    def _wait(self, how_many: str) -> None:
        done, self._under_way = concurrent.futures.wait(self._under_way, return_when=how_many)
        for part in done:
            part.result()

    def flush(self) -> None:
        """Stable when it returns."""
        if self.closed:
            return
        if self._part:
            self._send()
        self._wait(concurrent.futures.ALL_COMPLETED)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
        finally:
            self._threads.shutdown()
            self._file.close()
            super().close()


class Checkpoint:
    """Files of checkpoints below a prefix: ``writer(name)`` to save to, ``reader(name)`` to load from."""

    def __init__(self, pool: str, cont: str, prefix: str = "", storage_options: dict[str, Any] | None = None,
                 transfer_chunk_size: int = _CHUNK, chunks_limit: int = _CHUNKS, workers: int = _CHUNKS,
                 attach: str | None = None) -> None:
        if min(transfer_chunk_size, chunks_limit, workers) < 1:
            raise ValueError("sizes and numbers are at least 1")
        if storage_options:
            raise ValueError(f"unknown storage options: {', '.join(storage_options)}")
        self._files = FileSystem(pool, cont, attach=attach)
        self._prefix = prefix.strip("/")
        self._sizes = (transfer_chunk_size, chunks_limit, workers)

    def _path(self, file: str) -> str:
        if not file:
            raise ValueError("a checkpoint has a name")
        return f"{self._prefix}/{file.strip('/')}"

    def writer(self, file: str, ensure_path: bool = True) -> io.RawIOBase:
        """A file to be written, in place of one that is there; with the directories that it is in."""
        path = self._path(file)
        if ensure_path and "/" in path.strip("/"):
            self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        return _Writer(self._files.open(path, "wb", buffering=0), *self._sizes)

    def reader(self, file: str, stream: Any = None) -> Any:
        """A file's content, in memory; copied to ``stream`` where one is given."""
        data = self._files.read_files([self._path(file)])[0]
        if stream is None:
            return io.BytesIO(data)
        stream.write(data)
        stream.seek(0)
        return stream
