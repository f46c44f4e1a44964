"""fsspec, and what reads and writes by it."""

import pickle
import unittest

import fsspec
import numpy
import pandas
import xarray
import zarr

import weir

ROOT = "weir://tank/library"


class Libraries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create("tank", "library", kind="posix")
        # Where the package is installed by a wheel, an entry point says this.
        fsspec.register_implementation("weir", "weir.filesystem.WeirFileSystem", clobber=True)

    def setUp(self):
        self.files = fsspec.filesystem("weir")

    def test_files_and_directories(self):
        files, root = self.files, f"{ROOT}/basic"
        files.makedirs(f"{root}/a/b")
        files.pipe({f"{root}/a/one": b"1" * 10, f"{root}/a/b/two": b"2" * 20})
        self.assertEqual(files.cat_file(f"{root}/a/one", 3, 5), b"11")
        self.assertEqual(files.cat_file(f"{root}/a/b/two", -3), b"222")
        self.assertEqual(files.find(root), ["tank/library/basic/a/b/two", "tank/library/basic/a/one"])
        self.assertEqual(files.glob(f"{root}/a/*"), ["tank/library/basic/a/b", "tank/library/basic/a/one"])
        self.assertEqual([entry["type"] for entry in files.ls(f"{root}/a")], ["directory", "file"])
        self.assertEqual((files.size(f"{root}/a/one"), files.isdir(f"{root}/a"), files.exists(f"{root}/x")), (10, True, False))
        files.mv(f"{root}/a/one", f"{root}/moved")
        files.cp(f"{root}/a", f"{root}/copy", recursive=True)
        self.assertEqual(files.cat(f"{root}/copy/b/two"), b"2" * 20)
        files.rm(f"{root}/a", recursive=True)
        self.assertEqual(files.ls(root, detail=False), ["tank/library/basic/copy", "tank/library/basic/moved"])
        self.assertRaises(FileNotFoundError, files.info, f"{root}/none")
        self.assertRaises(FileNotFoundError, fsspec.filesystem("weir", auto_mkdir=False).pipe_file, f"{root}/none/x", b"x")
        self.assertRaises(FileNotFoundError, files.open, f"{root}/none/x", "rb")
        self.assertRaises(OSError, files.info, "weir://tank")
        self.assertEqual(pickle.loads(pickle.dumps(files)).cat(f"{root}/moved"), b"1" * 10)
        with fsspec.open(f"{root}/text", "w") as file:
            file.write("lines\nof text\n")
        with fsspec.open(f"{root}/text") as file:
            self.assertEqual(file.read(), b"lines\nof text\n")

    def test_pandas(self):
        frame = pandas.DataFrame({"number": range(1000), "name": [f"row {number}" for number in range(1000)]})
        frame.to_csv(f"{ROOT}/frame.csv", index=False)
        pandas.testing.assert_frame_equal(pandas.read_csv(f"{ROOT}/frame.csv"), frame)
        frame.to_pickle(f"{ROOT}/frame.pickle.gz")
        pandas.testing.assert_frame_equal(pandas.read_pickle(f"{ROOT}/frame.pickle.gz"), frame)

    def test_zarr(self):
        values = numpy.random.default_rng(1).normal(size=(200, 300))
        array = zarr.create_array(f"{ROOT}/array.zarr", shape=values.shape, chunks=(50, 100), dtype=values.dtype)
        array[:] = values
        numpy.testing.assert_array_equal(zarr.open_array(f"{ROOT}/array.zarr", mode="r")[20:120, 5:], values[20:120, 5:])

    def test_xarray(self):
        data = xarray.Dataset({"temperature": (("time", "place"), numpy.arange(60.0).reshape(6, 10))},
                              coords={"time": numpy.arange(6), "place": numpy.arange(10)})
        data.to_zarr(f"{ROOT}/data.zarr", zarr_format=2, consolidated=True)
        xarray.testing.assert_equal(xarray.open_zarr(f"{ROOT}/data.zarr", chunks=None).load(), data)
