package fabric

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State is how far a service has come.
type State string

const (
	// StateAllocating says that the service may have been made, under an identity that nobody knows.
	StateAllocating State = "Allocating"
	// StateAllocated says that the service is there, and that nobody is admitted to it.
	StateAllocated State = "Allocated"
	// StateAdmitting says that the namespace may have been admitted.
	StateAdmitting State = "Admitting"
	// StateAdmitted says that the namespace is admitted.
	StateAdmitted State = "Admitted"
	// StateDestroying says that the service has to go, and may be gone.
	StateDestroying State = "Destroying"
)

// Entry is what the journal knows of a service.
type Entry struct {
	// Owner is who the service is for: the UID of a pod or of a claim.
	Owner string `json:"owner"`
	State State  `json:"state"`
	// Boot is the start of the node that the service is of. Another start has no service of it.
	Boot    string  `json:"boot"`
	Request Request `json:"request"`
	// Others are the numbers of the device's services when the allocation began: the service is none of them.
	Others []uint32 `json:"others,omitempty"`
	// ID of the service, from StateAllocated on.
	ID ID `json:"id"`
	// Namespace that is admitted, or being admitted.
	Namespace *Namespace `json:"namespace,omitempty"`
	// BusySince is when the service was found in use for the first time while it should have been destroyed.
	BusySince *time.Time `json:"busySince,omitempty"`
}

const (
	// entrySuffix ends the names of the journal's files.
	entrySuffix = ".json"
	// unfinishedSuffix ends the name of a file that is being written.
	unfinishedSuffix = ".new"
	folderMode       = 0o700
	fileMode         = 0o600
)

// ownerName is what an owner can be called: a part of a file name.
var ownerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,200}$`)

// journal keeps one file for each service. A file is replaced as a whole, and is on the disk before anything is done on the
// strength of it.
type journal struct {
	folder string
	boot   string
}

// read returns the entries of this start of the node. It removes those of earlier ones, whose services are gone.
func (j *journal) read() (map[string]*Entry, error) {
	if err := os.MkdirAll(j.folder, folderMode); err != nil {
		return nil, fmt.Errorf("make the folder of the journal: %w", err)
	}
	files, err := os.ReadDir(j.folder)
	if err != nil {
		return nil, fmt.Errorf("read the journal: %w", err)
	}
	entries := map[string]*Entry{}
	for _, file := range files {
		owner, whole := strings.CutSuffix(file.Name(), entrySuffix)
		if !whole {
			continue // not finished: the service is as the file before says
		}
		text, err := os.ReadFile(filepath.Join(j.folder, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the journal: %w", err)
		}
		var entry Entry
		if err := json.Unmarshal(text, &entry); err != nil {
			return nil, fmt.Errorf("file %s of the journal in %s is damaged: compare it with the services of the node, then remove it: %w", file.Name(), j.folder, err)
		}
		if entry.Owner != owner {
			return nil, fmt.Errorf("file %s of the journal in %s is the one of %q: somebody renamed it", file.Name(), j.folder, entry.Owner)
		}
		if entry.Boot != j.boot {
			if err := j.remove(owner); err != nil {
				return nil, err
			}
			continue
		}
		entries[owner] = &entry
	}
	return entries, nil
}

func (j *journal) path(owner string) string { return filepath.Join(j.folder, owner+entrySuffix) }

// write replaces an entry.
func (j *journal) write(entry *Entry) error {
	text, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	path := j.path(entry.Owner)
	file, err := os.OpenFile(path+unfinishedSuffix, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, fileMode)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(path+unfinishedSuffix, path)
	}
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return j.sync()
}

// remove ends an entry.
func (j *journal) remove(owner string) error {
	if err := os.Remove(j.path(owner)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write the journal: %w", err)
	}
	return j.sync()
}

// sync puts the names of the journal's files on the disk.
func (j *journal) sync() error {
	folder, err := os.Open(j.folder)
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	err = errors.Join(unix.Fsync(int(folder.Fd())), folder.Close())
	if err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	return nil
}
