package story

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// entry is what must be the same of a file on the volume and in the source tree.
type entry struct {
	kind   string
	mode   string
	mtime  string
	digest string
}

// tree is a source tree on this machine: the Go toolchain's own sources, with a few symbolic links beside them, since
// that tree has none.
type tree struct {
	root    string
	without string
	links   map[string]string
	entries map[string]entry
	bytes   int64
}

// linkTime is the modification time of the planted links.
var linkTime = time.Date(2026, time.January, 2, 3, 4, 5, 678901234, time.UTC)

// loadTree reads the tree, without the folder of that name, if there is one.
func loadTree(ctx context.Context, without string) (*tree, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the Go toolchain where it lives: %w", err)
	}
	t := &tree{
		root:    filepath.Join(strings.TrimSpace(string(out)), "src"),
		without: without,
		entries: map[string]entry{},
		links: map[string]string{
			"link-to-file": "fmt/print.go", "link-to-directory": "net/http", "link-to-nothing": "no/such/file",
			"net/link-up": "../fmt/doc.go",
		},
	}
	if err := filepath.WalkDir(t.root, t.visit); err != nil {
		return nil, fmt.Errorf("read the source tree: %w", err)
	}
	for path, target := range t.links {
		t.entries[path] = entry{kind: "l", mode: "777", mtime: stamp(linkTime), digest: target}
	}
	return t, nil
}

func (t *tree) visit(path string, item fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name, err := filepath.Rel(t.root, path)
	if err != nil || name == "." {
		return err
	}
	if name == t.without && item.IsDir() {
		return fs.SkipDir
	}
	info, err := item.Info()
	if err != nil {
		return err
	}
	found := entry{mode: fmt.Sprintf("%o", info.Mode().Perm()), mtime: stamp(info.ModTime())}
	switch {
	case info.Mode().IsRegular():
		found.kind = "f"
		t.bytes += info.Size()
		found.digest, err = digest(path)
	case info.IsDir():
		found.kind = "d"
	default:
		return nil
	}
	t.entries[name] = found
	return err
}

func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // read only
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// stamp is a time as `find -printf %T@` prints it, cut to nanoseconds.
func stamp(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }

// archive writes the tree as a tar stream.
func (t *tree) archive(w io.Writer) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	out := tar.NewWriter(buffered)
	names := make([]string, 0, len(t.entries))
	for name := range t.entries {
		names = append(names, name)
	}
	// A directory's entries follow it without a gap: tar sets its times when it meets the first entry outside.
	sort.Slice(names, func(i, j int) bool {
		return strings.ReplaceAll(names[i], "/", "\x00") < strings.ReplaceAll(names[j], "/", "\x00")
	})
	for _, name := range names {
		if err := t.add(out, name); err != nil {
			return fmt.Errorf("archive %s: %w", name, err)
		}
	}
	if err := out.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

func (t *tree) add(out *tar.Writer, name string) error {
	if target, isLink := t.links[name]; isLink {
		return out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: linkTime, Format: tar.FormatPAX,
		})
	}
	path := filepath.Join(t.root, name)
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name, header.Format = name, tar.FormatPAX
	header.Uid, header.Gid, header.Uname, header.Gname = 0, 0, "", ""
	// Access and change times are the unpacking machine's own.
	header.AccessTime, header.ChangeTime = time.Time{}, time.Time{}
	if err := out.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // read only
	_, err = io.Copy(out, file)
	return err
}

// listScript prints one line for each entry below the current directory: type, mode, mtime, link target and path, then
// a marker line, then the SHA-256 of each regular file.
const listScript = `set -eu; cd "$1"
find . -mindepth 1 -printf '%y\t%m\t%T@\t%l\t%P\n'
echo ---
find . -type f -print0 | xargs -0 -P 4 -n 256 sha256sum`

// compare checks what listScript printed against the tree and returns the number of entries compared.
func (t *tree) compare(listing string) (int, error) {
	found, err := parseListing(listing)
	if err != nil {
		return 0, err
	}
	var wrong []string
	for name, want := range t.entries {
		got, exists := found[name]
		switch {
		case !exists:
			wrong = append(wrong, name+": missing")
		case got != want:
			wrong = append(wrong, fmt.Sprintf("%s: %+v, want %+v", name, got, want))
		}
	}
	for name := range found {
		if _, expected := t.entries[name]; !expected {
			wrong = append(wrong, name+": not in the source")
		}
	}
	if len(wrong) > 0 {
		sort.Strings(wrong)
		return len(found), fmt.Errorf("%d entries differ from the source, the first ones: %s",
			len(wrong), strings.Join(wrong[:min(len(wrong), 5)], "; "))
	}
	return len(found), nil
}

func parseListing(listing string) (map[string]entry, error) {
	stats, digests, found := strings.Cut(listing, "---\n")
	if !found {
		return nil, fmt.Errorf("the listing of the volume is cut off after %d bytes", len(listing))
	}
	entries := map[string]entry{}
	for line := range strings.Lines(stats) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 5)
		if len(fields) != 5 {
			return nil, fmt.Errorf("cannot read the listing's line %q", line)
		}
		whole, fraction, _ := strings.Cut(fields[2], ".")
		mtime := whole + "." + fraction[:min(len(fraction), 9)]
		entries[fields[4]] = entry{kind: fields[0], mode: fields[1], mtime: mtime, digest: fields[3]}
	}
	for line := range strings.Lines(digests) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ./")
		known, exists := entries[name]
		if !ok || !exists {
			return nil, fmt.Errorf("cannot read the digest line %q", line)
		}
		known.digest = sum
		entries[name] = known
	}
	return entries, nil
}
