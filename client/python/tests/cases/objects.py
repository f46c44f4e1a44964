"""Dictionaries and arrays in containers."""

import threading
import time
import unittest

import numpy

import weir

POOL = "tank"


class Dictionaries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create(POOL, "dictionaries")
        cls.container = weir.open(POOL, "dictionaries")

    @classmethod
    def tearDownClass(cls):
        cls.container.close()

    def test_values_are_stored_read_and_removed(self):
        cities = self.container.dict("cities", {"Barcelona": "Camp Nou", "London": b"Wembley"})
        self.assertEqual((cities["Barcelona"], cities[b"London"], len(cities)), (b"Camp Nou", b"Wembley", 2))
        self.assertIn("London", cities)
        cities["Rome"] = bytearray(range(256)) * 300
        self.assertEqual(self.container["cities"].get("Rome"), bytes(range(256)) * 300)
        self.assertEqual(sorted(cities), [b"Barcelona", b"London", b"Rome"])
        del cities["Rome"]
        self.assertNotIn("Rome", cities)
        self.assertIsNone(cities.get("Rome"))
        for missing in (lambda: cities["Rome"], lambda: cities.pop("Rome"), lambda: cities.__delitem__("Rome")):
            self.assertRaises(KeyError, missing)
        self.assertEqual(cities.pop("London"), b"Wembley")
        self.assertEqual(cities.dump(), {b"Barcelona": b"Camp Nou"})

    def test_many_values_go_at_a_time(self):
        numbers = self.container.dict("numbers")
        values = {f"key {number}": str(number) * 10 for number in range(1500)}
        numbers.bput(values)
        self.assertEqual(len(numbers), 1500)
        wanted = {"key 7": None, "key 1499": None, "none": None}
        numbers.bget(wanted)
        self.assertEqual(wanted, {"key 7": b"7" * 10, "key 1499": b"1499" * 10, "none": None})
        self.assertEqual({key.decode(): value.decode() for key, value in numbers.items()}, values)
        numbers.bput({"key 7": None, "key 8": "eight"})
        self.assertEqual(numbers.bget(["key 7", "key 8"]), {"key 7": None, "key 8": b"eight"})

    def test_names_are_those_of_the_container(self):
        self.container.dict("one")
        self.container.array("two", [1, 2, 3])
        self.assertLessEqual({"one", "two"}, set(self.container))
        self.assertEqual(self.container["one"].id, self.container.dict("one").id)
        self.assertRaises(ValueError, self.container.array, "one", [1])
        self.assertRaises(ValueError, self.container.dict, "two")
        del self.container["one"]
        self.assertNotIn("one", self.container)
        self.assertRaises(weir.NotFound, lambda: self.container["one"])

    def test_two_clients_that_make_a_name_get_the_same_object(self):
        found, start = [], threading.Barrier(8)

        def make():
            start.wait()
            found.append(self.container.dict("contended").id)

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(found), len(set(found))), (8, 1))

    def test_errors_have_their_numbers(self):
        cities = self.container.dict("limits")
        for wrong, number in (
            (lambda: cities.put("empty", b""), 1003),
            (lambda: cities.put("k" * 2000, "v"), 2012),
            (lambda: weir.open(POOL, "none"), None),
            (lambda: weir.open("none", "none"), 1005),
        ):
            with self.assertRaises(weir.Error) as raised:
                wrong()
            if number:
                self.assertEqual(raised.exception.der, number, raised.exception)
        self.assertRaises(ValueError, weir.create, POOL, "x", kind="block")
        self.assertRaises(TypeError, cities.put, "number", 5)

    def test_what_is_closed_or_read_only_is_refused(self):
        with weir.open(POOL, "dictionaries", read_only=True) as container:
            cities = container.dict("cities")
            with self.assertRaises(weir.Error) as raised:
                cities["Rome"] = "x"
            self.assertEqual(raised.exception.der, 1001)
        self.assertRaises(ValueError, lambda: cities["Rome"])

    def test_calls_wait_without_the_lock(self):
        numbers = self.container.dict("slow")
        counted, done = [0], threading.Event()

        def count():
            while not done.is_set():
                counted[0] += 1
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        numbers.bput({str(number): b"x" * 1000 for number in range(2000)})
        done.set()
        thread.join()
        self.assertGreater(counted[0], 10)


class Arrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create(POOL, "arrays")
        cls.container = weir.open(POOL, "arrays")

    @classmethod
    def tearDownClass(cls):
        cls.container.close()

    def test_arrays_come_back_as_they_were(self):
        for name, values in (
            ("vector", numpy.arange(1000, dtype="<i4")),
            ("matrix", numpy.random.default_rng(1).normal(size=(300, 1000))),
            ("complex", numpy.full((2, 3, 4), 1 + 2j)),
            ("records", numpy.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i8"), ("b", "<f8")])),
            ("nested", numpy.zeros(3, dtype=[("a", [("x", "<i4"), ("y", "<f4", (2, 3))]), ("b", "S5")])),
            ("one", numpy.float32(7)),
            ("empty", numpy.zeros((0, 5))),
        ):
            self.container.array(name, values)
            found = self.container[name]
            self.assertEqual((found.shape, found.dtype), (values.shape, values.dtype), name)
            numpy.testing.assert_array_equal(numpy.asarray(found), values)
        transposed = numpy.arange(12).reshape(3, 4).T
        numpy.testing.assert_array_equal(self.container.array("transposed", transposed).read(), transposed)

    def test_parts_are_those_of_numpy(self):
        values = numpy.arange(20 * 30).reshape(20, 30)
        stored = self.container.array("parts", values)
        for key in (3, -1, slice(2, 9), slice(None, None, 4), slice(15, 3, -5), slice(None, None, -1), slice(5, 5), ..., (4, 7),
                    (slice(1, 5), slice(2, 20, 3)), (..., 0), ([1, 5, 7],), (slice(None), [0, 29]), numpy.int64(6)):
            numpy.testing.assert_array_equal(stored[key], values[key], str(key))
        for key, new in ((3, 1), (slice(5, 8), numpy.arange(90).reshape(3, 30)), ((4, 7), -1), ((slice(0, 20, 3), slice(1, 3)), 5),
                         (slice(15, 3, -5), 9), (([1, 5], 3), [7, 8])):
            stored[key] = values[key] = new
            numpy.testing.assert_array_equal(stored.read(), values, str(key))
        for wrong in (20, -21):
            self.assertRaises(IndexError, lambda: stored[wrong])
        self.assertRaises(ValueError, stored.__setitem__, slice(0, 2), numpy.zeros((3, 30)))

    def test_shape_and_type_are_kept(self):
        stored = self.container.array("zeros", shape=(4, 5), dtype="f4")
        numpy.testing.assert_array_equal(stored.read(), numpy.zeros((4, 5), "f4"))
        self.assertEqual((stored.size, stored.nbytes, stored.ndim, len(stored)), (20, 80, 2, 4))
        self.assertRaises(ValueError, self.container.array, "zeros", numpy.zeros((5, 4), "f4"))
        self.assertRaises(TypeError, self.container.array, "objects", [object()])
        self.assertRaises(weir.NotFound, self.container.array, "none")
