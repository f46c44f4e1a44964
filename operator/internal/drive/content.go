package drive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"unicode/utf8"

	"github.com/google/uuid"
)

// ContentKind is a kind of content.
type ContentKind string

const (
	// ContentUnknown says that nobody has looked.
	ContentUnknown ContentKind = ""
	// ContentBlank says that all bytes that were looked at are zero.
	ContentBlank ContentKind = "Blank"
	// ContentUnfinished is what a format of an engine leaves that did not come to its end. It holds no data.
	ContentUnfinished ContentKind = "Unfinished"
	// ContentStore is the store of a target.
	ContentStore ContentKind = "Store"
	// ContentDamagedStore is a store whose first block can't be read: an engine finds its copy.
	ContentDamagedStore ContentKind = "DamagedStore"
	// ContentForeign is somebody else's.
	ContentForeign ContentKind = "Foreign"
)

// Content is what is on a drive, by its first and last bytes.
type Content struct {
	Kind ContentKind `json:"kind"`
	// Signature says what foreign content is.
	Signature string `json:"signature,omitempty"`
	// Store says whose a store is.
	Store *Store `json:"store,omitempty"`
}

// Store says whose a store is. docs/reference/format.md has the layout of its first block.
type Store struct {
	ID     string `json:"id"`
	System string `json:"system"`
	Rank   uint32 `json:"rank"`
	Target uint32 `json:"target"`
}

const (
	// EdgeBytes are looked at, at either end of a drive: there is where file systems, volumes, RAID and partition tables have
	// their signatures.
	EdgeBytes = 1 << 20
	// block is the unit of a store.
	block = 4096
	// The first block of a store.
	storeMagic      = "WEIRSTOR"
	unfinishedMagic = "WEIRFRMT"
	crcAt           = 12
	copyAt          = 40
	idAt            = 24
	rankAt          = 40
	targetAt        = 44
	systemAt        = 48
	systemBytes     = 63
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ReadContent looks at what is on a drive of so many bytes.
func ReadContent(drive io.ReaderAt, size int64) (Content, error) {
	edge := min(size, EdgeBytes)
	if edge < block {
		return Content{}, fmt.Errorf("a drive of %d bytes has room for nothing", size)
	}
	start, end := make([]byte, edge), make([]byte, edge)
	if err := readFull(drive, start, 0); err != nil {
		return Content{}, err
	}
	if err := readFull(drive, end, size-edge); err != nil {
		return Content{}, err
	}
	return contentOf(start, end, size), nil
}

func readFull(drive io.ReaderAt, into []byte, at int64) error {
	n, err := drive.ReadAt(into, at)
	if n == len(into) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d: %w", len(into), at, err)
}

// contentOf what begins and ends with these bytes.
func contentOf(start, end []byte, size int64) Content {
	signature := signatureOf(start, end, size)
	first := start[:block]
	switch {
	case bytes.HasPrefix(first, []byte(storeMagic)) && signature == "":
		store, err := decodeStore(first)
		if err != nil {
			return Content{Kind: ContentDamagedStore, Signature: err.Error()}
		}
		return Content{Kind: ContentStore, Store: store}
	case bytes.HasPrefix(first, []byte(unfinishedMagic)) && signature == "":
		if first[copyAt] == 1 {
			return Content{Kind: ContentForeign, Signature: "a copy of a store that was not finished"}
		}
		return Content{Kind: ContentUnfinished}
	case signature != "":
		return Content{Kind: ContentForeign, Signature: signature}
	case isZero(start) && isZero(end):
		return Content{Kind: ContentBlank}
	default:
		return Content{Kind: ContentForeign, Signature: "unknown data"}
	}
}

func isZero(data []byte) bool {
	for _, b := range data {
		if b != 0 {
			return false
		}
	}
	return true
}

var errChecksum = errors.New("the first block of a store does not match its checksum")

func decodeStore(first []byte) (*Store, error) {
	stored := binary.LittleEndian.Uint32(first[crcAt:])
	whole := bytes.Clone(first)
	copy(whole[crcAt:crcAt+4], []byte{0, 0, 0, 0})
	if crc32.Checksum(whole, castagnoli) != stored {
		return nil, errChecksum
	}
	id, err := uuid.FromBytes(first[idAt : idAt+16])
	if err != nil {
		return nil, fmt.Errorf("identity of a store: %w", err)
	}
	length := int(first[systemAt])
	if length == 0 || length > systemBytes {
		return nil, fmt.Errorf("the name of a store's system has %d bytes", length)
	}
	system := first[systemAt+1 : systemAt+1+length]
	if !utf8.Valid(system) || printable(string(system)) != string(system) {
		return nil, errors.New("the name of a store's system is no name")
	}
	return &Store{
		ID: id.String(), System: string(system),
		Rank: binary.LittleEndian.Uint32(first[rankAt:]), Target: binary.LittleEndian.Uint32(first[targetAt:]),
	}, nil
}
