"""PyTorch's data loaders and checkpoints."""

import unittest

import pydaos.torch
import torch
import weir
import weir.torch
from torch.utils.data import DataLoader

POOL, CONTAINER, COUNT = "tank", "learning", 60


def decoded(data):
    return torch.frombuffer(bytearray(data), dtype=torch.int32)


class Learning(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create(POOL, CONTAINER, kind="posix")
        files = weir.FileSystem(POOL, CONTAINER)
        for number in range(COUNT):
            folder = f"/train/{number % 3}"
            files.makedirs(folder, exist_ok=True)
            with files.open(f"{folder}/{number:03}", "wb", buffering=0) as file:
                file.write(torch.full((100,), number, dtype=torch.int32).numpy())
        files.container.close()

    def found(self, loader):
        return sorted(int(value) for batch in loader for value in batch[:, 0])

    def test_files_are_loaded_by_number(self):
        data = pydaos.torch.Dataset(pool=POOL, cont=CONTAINER, path="/train", transform_fn=decoded)
        self.assertEqual((len(data), data[0].shape), (COUNT, (100,)))
        self.assertEqual([int(one[0]) for one in data.__getitems__([0, 1])], [int(data[0][0]), int(data[1][0])])
        self.assertRaises(IndexError, lambda: data[COUNT])
        for workers in (0, 2):
            for method in ("fork", "spawn") if workers else (None,):
                loader = DataLoader(data, batch_size=7, shuffle=True, num_workers=workers, worker_init_fn=data.worker_init,
                                    multiprocessing_context=method)
                self.assertEqual(self.found(loader), list(range(COUNT)), (workers, method))

    def test_files_are_loaded_one_after_another(self):
        data = pydaos.torch.IterableDataset(POOL, CONTAINER, "/train", transform_fn=decoded, batch_size=8)
        for workers in (0, 2, 4):
            loader = DataLoader(data, batch_size=5, num_workers=workers, worker_init_fn=data.worker_init)
            self.assertEqual(self.found(loader), list(range(COUNT)), workers)
        self.assertRaises(ValueError, pydaos.torch.IterableDataset, POOL, CONTAINER, batch_size=0)

    def test_a_model_is_saved_and_loaded(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 20))
        checkpoint = pydaos.torch.Checkpoint(POOL, CONTAINER, prefix="checkpoints", transfer_chunk_size=100_000)
        with checkpoint.writer("epoch/1.pt") as file:
            torch.save(model.state_dict(), file)
        loaded = torch.load(checkpoint.reader("epoch/1.pt"))
        self.assertEqual(set(loaded), set(model.state_dict()))
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(loaded[name], value), name)
        with checkpoint.writer("epoch/1.pt") as file:
            self.assertEqual((file.write(b"short"), file.tell()), (5, 5))
        self.assertEqual(checkpoint.reader("epoch/1.pt").read(), b"short")
        self.assertRaises(ValueError, file.write, b"x")
        self.assertRaises(FileNotFoundError, checkpoint.reader, "none")
        self.assertRaises(FileNotFoundError, checkpoint.writer, "nowhere/file", ensure_path=False)
