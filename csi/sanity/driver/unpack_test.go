package driver

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// setTime is a modification time that no write makes.
var setTime = time.Unix(1_234_567_890, 123_456_789)

// owner is who owns a file, and the time of its content; the zero time is one of a write.
type owner struct {
	mode     fs.FileMode
	uid, gid uint32
	modified time.Time
}

// compare reports in what attributes differ from those wanted.
func (o owner) compare(info fs.FileInfo) error {
	system, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return fmt.Errorf("%s has no attributes of the system", info.Name())
	case info.Mode().Perm() != o.mode, system.Uid != o.uid, system.Gid != o.gid:
		return fmt.Errorf("%s has mode %o and owner %d:%d, want %o and %d:%d", info.Name(), info.Mode().Perm(), system.Uid, system.Gid, o.mode, o.uid, o.gid)
	case o.modified.IsZero() && info.ModTime().Equal(setTime), !o.modified.IsZero() && !info.ModTime().Equal(o.modified):
		return fmt.Errorf("%s was modified at %s, want %s (zero: by a write)", info.Name(), info.ModTime(), o.modified)
	}
	return nil
}

// describe gives an open file mode and owner, and sets its times.
func describe(file *os.File, o owner) error {
	err := errors.Join(file.Chmod(o.mode), file.Chown(int(o.uid), int(o.gid)))
	if o.modified.IsZero() {
		return err
	}
	return errors.Join(err, os.Chtimes(file.Name(), o.modified, o.modified))
}

// What a mount gathers of new files' attributes outlives its process, in the order in which they were changed and written.
func TestAttributesOfNewFilesOutliveTheProcessOfTheirMount(t *testing.T) {
	b := startBrokered(t)
	v := newVolume(t, 512*mebibyte)
	v.orphaned = true
	mount, other := b.mountAt(v, "attributes"), b.mountAt(v, "other")
	set := owner{mode: 0o604, uid: 7, gid: 8, modified: setTime}
	overwritten := owner{mode: 0o640, uid: 9, gid: 10}
	text := bytes.Repeat([]byte("text "), 1000)
	cases := map[string]struct {
		want  owner
		steps func(*os.File) error
	}{
		"set after a write": {set, func(f *os.File) error {
			_, err := f.Write(text)
			return errors.Join(err, describe(f, set))
		}},
		"set after a write that was synced": {set, func(f *os.File) error {
			_, err := f.Write(text)
			return errors.Join(err, f.Sync(), describe(f, set))
		}},
		"overwritten after they were set": {overwritten, func(f *os.File) error {
			err := errors.Join(describe(f, set), describe(f, overwritten))
			_, failed := f.Write(text)
			return errors.Join(err, failed)
		}},
	}
	files := map[string]*os.File{}
	for name := range cases {
		file, err := os.OpenFile(filepath.Join(mount, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		files[name] = file
	}
	removed, err := os.Create(filepath.Join(mount, "removed"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = removed.Close() }()
	if err := errors.Join(describe(removed, set), os.Remove(removed.Name())); err != nil {
		t.Fatal(err)
	}
	for name, file := range files {
		if err := cases[name].steps(file); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 {
		b.killServer(mount)
		listed, err := os.ReadDir(mount)
		if err != nil || len(listed) != len(cases) {
			t.Fatalf("listed %v: %v", listed, err)
		}
		for _, entry := range listed {
			info, err := entry.Info()
			if err != nil || info.Size() != int64(len(text)) {
				t.Errorf("round %d: listed %v: %v", round, info, err)
				continue
			}
			if err := cases[entry.Name()].want.compare(info); err != nil {
				t.Errorf("round %d: listed: %v", round, err)
			}
		}
	}
	if info, err := removed.Stat(); err != nil {
		t.Error(err)
	} else if err := set.compare(info); err != nil {
		t.Errorf("removed: %v", err)
	}
	for name, file := range files {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		path := filepath.Join(other, name)
		info, err := os.Stat(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := cases[name].want.compare(info); err != nil {
			t.Errorf("another mount: %v", err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, text) {
			t.Errorf("another mount: %s has %d bytes: %v", name, len(got), err)
		}
	}
}

// packed is an entry of a tree that is unpacked.
type packed struct {
	name, target string
	content      []byte
	owner        owner
}

// packedTree is a tree in the manner of a source tree.
func packedTree(folders, files int) []packed {
	var tree []packed
	for folder := range folders {
		parent := fmt.Sprintf("folder-%02d", folder)
		tree = append(tree, packed{name: parent, owner: owner{mode: fs.ModeDir | 0o755}})
		for number := range files {
			content := bytes.Repeat([]byte{byte(folder), byte(number), 1}, number*997+1)
			modified := setTime.Add(time.Duration(folder*files+number) * time.Second)
			tree = append(tree, packed{
				name: fmt.Sprintf("%s/file-%02d", parent, number), content: content,
				owner: owner{mode: fs.FileMode(0o600 + number%8), uid: uint32(number % 3), gid: uint32(folder), modified: modified},
			})
		}
		tree = append(tree, packed{name: parent + "/link", target: fmt.Sprintf("file-%02d", folder%files)})
	}
	return tree
}

// unpack makes an entry of a tree as tar does, and takes no excuse: no name may be there before, and none may be missing.
func (p packed) unpack(mount string) error {
	path := filepath.Join(mount, p.name)
	switch {
	case p.owner.mode.IsDir():
		return os.Mkdir(path, p.owner.mode.Perm())
	case p.target != "":
		return os.Symlink(p.target, path)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(p.content)
	return errors.Join(err, describe(file, p.owner), file.Close())
}

// shuffle changes names of an entry that was unpacked, and leaves it as it was.
func (p packed) shuffle(mount string) error {
	path := filepath.Join(mount, p.name)
	folder, other, third := path+".folder", path+".other", path+".third"
	for _, step := range []func() error{
		func() error { return os.Mkdir(folder, 0o700) },
		func() error { return os.Rename(path, filepath.Join(folder, "inner")) },
		func() error { return os.Link(filepath.Join(folder, "inner"), other) },
		func() error { return os.Remove(filepath.Join(folder, "inner")) },
		func() error { return os.WriteFile(third, []byte("third"), 0o600) },
		func() error { return unix.Renameat2(unix.AT_FDCWD, other, unix.AT_FDCWD, third, unix.RENAME_EXCHANGE) },
		func() error { return unix.Setxattr(third, "user.new", []byte("value"), unix.XATTR_CREATE) },
		func() error { return unix.Removexattr(third, "user.new") },
		func() error { return os.Rename(third, other) },
		func() error { return os.Rename(other, path) },
		func() error { return os.Remove(folder) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// verify compares an entry with what a mount shows.
func (p packed) verify(mount string) error {
	path := filepath.Join(mount, p.name)
	if p.target != "" {
		target, err := os.Readlink(path)
		if err == nil && target != p.target {
			err = fmt.Errorf("%s leads to %q", p.name, target)
		}
		return err
	}
	info, err := os.Stat(path)
	if err != nil || info.IsDir() {
		return err
	}
	got, err := os.ReadFile(path)
	if err == nil && !bytes.Equal(got, p.content) {
		err = fmt.Errorf("%s has other content than was written", p.name)
	}
	return errors.Join(err, p.owner.compare(info))
}

// A tree that is unpacked has all content and attributes although the process of its mount is killed again and again, and
// another mount shows that.
func TestATreeIsUnpackedWholeWhileTheProcessOfItsMountIsKilled(t *testing.T) {
	b := startBrokered(t)
	v := newVolume(t, 512*mebibyte)
	v.orphaned = true
	mount, other := b.mountAt(v, "unpacked"), b.mountAt(v, "other")
	// Some entries are made between two kills, on a slow machine, too.
	const entriesPerKill = 10
	tree := packedTree(8, 20)
	var made atomic.Int64
	unpacked := make(chan error, 1)
	go func() {
		for number, entry := range tree {
			err := entry.unpack(mount)
			if err == nil && number%3 == 0 && entry.content != nil {
				err = entry.shuffle(mount)
			}
			if err != nil {
				unpacked <- fmt.Errorf("entry %d: %w", number, err)
				return
			}
			made.Add(1)
		}
		unpacked <- nil
	}()
	kills := int64(0)
	for is := false; !is; {
		select {
		case err := <-unpacked:
			if err != nil {
				t.Fatal(err)
			}
			is = true
		case <-time.After(7 * time.Millisecond):
			if made.Load() > kills*entriesPerKill {
				b.killServer(mount)
				kills++
			}
		}
	}
	for _, entry := range tree {
		if err := entry.verify(other); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d entries, %d kills", len(tree), kills)
}

// Unpacking takes no more operations of engines with the broker than without.
func TestUnpackingTakesNoMoreOperationsWithTheBroker(t *testing.T) {
	b := startBrokered(t)
	v := newVolume(t, 512*mebibyte)
	mounts := map[string]string{"with": b.mountAt(v, "operations"), "without": v.mount("plain", false)}
	operations := func() (sum float64) {
		for _, address := range b.machine.engineMetrics(t) {
			count, _ := value(scrape(t, address)["weir_engine_operations_total"], map[string]string{"container": v.name})
			sum += count
		}
		return sum
	}
	took := map[string]float64{}
	for how, mount := range mounts {
		tree := packedTree(4, 25)
		folder := filepath.Join(mount, how)
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		before, began := operations(), time.Now()
		for _, entry := range tree {
			if err := entry.unpack(folder); err != nil {
				t.Fatal(err)
			}
		}
		took[how] = operations() - before
		t.Logf("%d entries %s the broker: %.0f operations, %s", len(tree), how, took[how], time.Since(began))
	}
	// The leases of both mounts take some.
	if took["without"] == 0 || took["with"] > 1.1*took["without"]+20 {
		t.Errorf("%.0f operations with the broker, %.0f without", took["with"], took["without"])
	}
}
