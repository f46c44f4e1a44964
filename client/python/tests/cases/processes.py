"""Forks, threads and pickles."""

import concurrent.futures
import multiprocessing
import os
import pickle
import unittest

import numpy

import weir

POOL = "tank"


def read_value(found, key):
    return found[key]


def sum_of(array, row):
    return float(array[row].sum())


def content(files, path):
    return files.read_files([path])[0]


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create(POOL, "processes")
        weir.create(POOL, "files", kind="posix")
        cls.container = weir.open(POOL, "processes")
        cls.files = weir.FileSystem(POOL, "files")

    @classmethod
    def tearDownClass(cls):
        cls.container.close()
        cls.files.container.close()

    def test_a_forked_child_uses_what_its_parent_has_open(self):
        numbers = self.container.dict("numbers", {"parent": "1"})
        child = os.fork()
        if child == 0:
            status = 1
            try:
                numbers["child"] = numbers["parent"] + b" and 2"
                self.container.close()
                status = 0
            finally:
                os._exit(status)
        # Meanwhile the parent goes on.
        for number in range(50):
            numbers[f"key {number}"] = "x"
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        self.assertEqual(numbers["child"], b"1 and 2")
        grandchild = os.fork()
        if grandchild == 0:
            # An ordinary end, with all that runs then.
            inner = os.fork()
            if inner == 0:
                os._exit(0 if numbers["child"] == b"1 and 2" else 1)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]), 0)
        self.assertEqual(numbers["parent"], b"1")

    def test_workers_of_any_kind_get_pickled_handles(self):
        numbers = self.container.dict("pickled", {str(number): str(number * number) for number in range(20)})
        matrix = self.container.array("matrix", numpy.arange(200.0).reshape(10, 20))
        with self.files.open("/shared", "wb") as file:
            file.write(b"shared by processes")
        for method in ("fork", "spawn"):
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
                found = list(pool.map(read_value, [numbers] * 20, map(str, range(20))))
                self.assertEqual(found, [str(number * number).encode() for number in range(20)], method)
                sums = list(pool.map(sum_of, [matrix] * 10, range(10)))
                self.assertEqual(sums, [float(row.sum()) for row in matrix.read()], method)
                self.assertEqual(pool.submit(content, self.files, "/shared").result(), b"shared by processes")
        again = pickle.loads(pickle.dumps((numbers, matrix)))
        self.assertEqual((again[0]["3"], again[1].shape), (b"9", (10, 20)))
        for one in again:
            one.container.close()

    def test_threads_share_handles(self):
        numbers = self.container.dict("threads")

        def work(thread):
            for number in range(50):
                numbers[f"{thread} {number}"] = str(number)
            return [int(numbers[f"{thread} {number}"]) for number in range(50)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(work, range(8))), [list(range(50))] * 8)
        self.assertEqual(len(numbers), 400)
