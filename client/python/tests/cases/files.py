"""File systems in containers."""

import io
import os
import stat
import unittest

import weir

POOL = "tank"


class Files(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        weir.create(POOL, "home", kind="posix")
        cls.files = weir.FileSystem(POOL, "home")

    @classmethod
    def tearDownClass(cls):
        cls.files.container.close()

    def test_content_is_written_and_read_as_by_open(self):
        data = os.urandom(5_000_000)
        with self.files.open("/blob", "wb") as file:
            file.write(data[:1])
            file.write(data[1:])
        with self.files.open("/blob", "rb") as file:
            self.assertEqual(file.read(10), data[:10])
            file.seek(-7, os.SEEK_END)
            self.assertEqual(file.read(), data[-7:])
        with self.files.open("/blob", "r+b") as file:
            file.seek(100)
            file.write(b"changed")
            file.truncate(4096)
        self.assertEqual(self.files.read_files(["/blob"])[0], data[:100] + b"changed" + data[107:4096])
        with self.files.open("/text", "w", encoding="utf-8") as file:
            print("größer", "zwei", sep="\n", file=file)
        with self.files.open("/text", "a", encoding="utf-8") as file:
            file.write("drei\n")
        with self.files.open("/text", encoding="utf-8") as file:
            self.assertEqual(list(file), ["größer\n", "zwei\n", "drei\n"])

    def test_modes_are_those_of_open(self):
        with self.files.open("/new", "x") as file:
            file.write("x")
        self.assertRaises(FileExistsError, self.files.open, "/new", "x")
        self.assertRaises(FileNotFoundError, self.files.open, "/none")
        for wrong in ("rw", "", "rbt", "q"):
            self.assertRaises(ValueError, self.files.open, "/new", wrong)
        with self.files.open("/new", "rb", buffering=0) as file:
            self.assertRaises(io.UnsupportedOperation, file.write, b"x")
            self.assertRaises(OSError, file.seek, -1)
            self.assertEqual(file.pread(1 << 40, 0), b"x")
        self.assertRaises(ValueError, file.read)

    def test_names_are_those_of_os(self):
        files = self.files
        files.makedirs("/deep/er", exist_ok=True)
        self.assertRaises(FileExistsError, files.mkdir, "/deep")
        with files.open("/deep/er/file", "wb") as file:
            file.write(b"12345")
        files.chmod("/deep/er/file", 0o640)
        about = files.stat("/deep/er/file")
        self.assertEqual((about.st_size, stat.S_IMODE(about.st_mode), stat.S_ISREG(about.st_mode)), (5, 0o640, True))
        self.assertTrue(stat.S_ISDIR(files.stat("/deep").st_mode))
        files.symlink("er/file", "/deep/link")
        self.assertEqual(files.readlink("/deep/link"), "er/file")
        self.assertEqual(files.stat("/deep/link").st_size, 5)
        self.assertTrue(stat.S_ISLNK(files.stat("/deep/link", follow_symlinks=False).st_mode))
        self.assertEqual(sorted(files.listdir("/deep")), ["er", "link"])
        files.rename("/deep/er/file", "/deep/moved")
        self.assertEqual((files.exists("/deep/er/file"), files.exists("/deep/moved")), (False, True))
        self.assertRaises(OSError, files.rmdir, "/deep")
        files.unlink("/deep/link")
        files.rmtree("/deep")
        self.assertFalse(files.exists("/deep"))
        total, used, free = files.space()
        self.assertTrue(0 < free <= total and used >= 0)

    def test_many_files_are_read_at_a_time(self):
        self.files.mkdir("/many")
        for number in range(100):
            with self.files.open(f"/many/{number}", "wb", buffering=0) as file:
                if number:
                    file.write(bytes([number]) * number * 100)
        found = self.files.read_files([f"/many/{number}" for number in range(100)])
        self.assertEqual(found, [bytes([number]) * number * 100 for number in range(100)])
        self.assertEqual({entry["name"]: entry["size"] for entry in self.files.scandir("/many")}[b"7"], 700)
        self.assertRaises(FileNotFoundError, self.files.read_files, ["/many/1", "/many/none"])
        self.assertRaises(IsADirectoryError, self.files.read_files, ["/many"])

    def test_containers_of_another_type_are_refused(self):
        weir.create(POOL, "objects")
        with weir.open(POOL, "objects") as container:
            self.assertRaises(OSError, weir.FileSystem, container)
        self.assertRaises(ValueError, self.files.container.dict, "x")
