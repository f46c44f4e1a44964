package drive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// size of the drives of these tests: both ends, and something between.
const size = 4 << 20

func image(writes map[int]string) []byte {
	drive := make([]byte, size)
	for at, text := range writes {
		copy(drive[at:], text)
	}
	return drive
}

func read(t *testing.T, drive []byte) Content {
	t.Helper()
	content, err := ReadContent(bytes.NewReader(drive), int64(len(drive)))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func number(value uint64, width int, order binary.AppendByteOrder) string {
	return string(order.AppendUint64(nil, value)[:width])
}

func TestForeignContentIsNamed(t *testing.T) {
	tests := map[string]struct {
		writes map[int]string
		want   string
	}{
		"ext4":               {map[int]string{1024 + 56: "\x53\xef"}, "ext4"},
		"xfs":                {map[int]string{0: "XFSB"}, "XFS"},
		"btrfs":              {map[int]string{65600: "_BHRfS_M"}, "btrfs"},
		"LVM":                {map[int]string{512: "LABELONE"}, "LVM"},
		"GPT":                {map[int]string{510: "\x55\xaa", 512: "EFI PART"}, "GPT"},
		"GPT, its copy only": {map[int]string{size - 512: "EFI PART"}, "GPT"},
		"GPT of 4 KiB":       {map[int]string{4096: "EFI PART"}, "GPT"},
		"MBR":                {map[int]string{510: "\x55\xaa"}, "partition table"},
		"swap":               {map[int]string{4086: "SWAPSPACE2"}, "swap"},
		"swap of 64 KiB":     {map[int]string{65526: "SWAPSPACE2"}, "swap"},
		"md 1.2":             {map[int]string{4096: "\xfc\x4e\x2b\xa9"}, "RAID"},
		"md 1.0":             {map[int]string{size - 8192: "\xfc\x4e\x2b\xa9"}, "RAID"},
		"md 0.90":            {map[int]string{size - 65536: "\xfc\x4e\x2b\xa9"}, "RAID"},
		"ZFS, little-endian": {map[int]string{131072 + 3*1024: number(0x00bab10c, 8, binary.LittleEndian)}, "ZFS"},
		"ZFS, at the end":    {map[int]string{size - 131072: number(0x00bab10c, 8, binary.BigEndian)}, "ZFS"},
		"LUKS":               {map[int]string{0: "LUKS\xba\xbe"}, "LUKS"},
		"Ceph":               {map[int]string{0: "bluestore block device\n"}, "Ceph"},
		"anything":           {map[int]string{EdgeBytes - 1: "x"}, "unknown"},
		"anything at an end": {map[int]string{size - 1: "x"}, "unknown"},
		"a mark over ext4":   {map[int]string{0: "WEIRFRMT", 1080: "\x53\xef"}, "ext4"},
		"a copy under way":   {map[int]string{0: "WEIRFRMT", 40: "\x01"}, "copy"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			content := read(t, image(tc.writes))
			if content.Kind != ContentForeign || !strings.Contains(content.Signature, tc.want) {
				t.Errorf("%+v", content)
			}
		})
	}
	if content := read(t, image(nil)); content.Kind != ContentBlank {
		t.Errorf("zeros: %+v", content)
	}
	if content := read(t, image(map[int]string{0: "WEIRFRMT"})); content.Kind != ContentUnfinished {
		t.Errorf("an interrupted format: %+v", content)
	}
}

// superblock is the first block of a store, as docs/reference/format.md describes it.
func superblock(system string, rank, target uint32) []byte {
	first := make([]byte, block)
	copy(first, storeMagic)
	binary.LittleEndian.PutUint32(first[8:], 3)
	first[idAt] = 7
	binary.LittleEndian.PutUint32(first[rankAt:], rank)
	binary.LittleEndian.PutUint32(first[targetAt:], target)
	first[systemAt] = byte(len(system))
	copy(first[systemAt+1:], system)
	seal(first)
	return first
}

func seal(first []byte) {
	copy(first[crcAt:], []byte{0, 0, 0, 0})
	binary.LittleEndian.PutUint32(first[crcAt:], crc32.Checksum(first, crc32.MakeTable(crc32.Castagnoli)))
}

func TestAStoreSaysWhoseItIs(t *testing.T) {
	content := read(t, image(map[int]string{0: string(superblock("weir", 3, 1))}))
	want := Store{ID: "07000000-0000-0000-0000-000000000000", System: "weir", Rank: 3, Target: 1}
	if content.Kind != ContentStore || *content.Store != want {
		t.Errorf("%+v %+v", content, content.Store)
	}
	damages := map[string]func([]byte){
		"a flipped bit": func(b []byte) { b[100] ^= 1 },
		"no name":       func(b []byte) { b[systemAt] = 0; seal(b) },
		"a long name":   func(b []byte) { b[systemAt] = 255; seal(b) },
		"a control":     func(b []byte) { b[systemAt+1] = 7; seal(b) },
		"no text":       func(b []byte) { b[systemAt+1] = 0xff; seal(b) },
	}
	for name, damage := range damages {
		first := superblock("weir", 3, 1)
		damage(first)
		if content := read(t, image(map[int]string{0: string(first)})); content.Kind != ContentDamagedStore {
			t.Errorf("%s: %+v", name, content)
		}
	}
}

func TestNoContentCausesAPanic(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	begins := []string{storeMagic, unfinishedMagic, "XFSB", "", "\x55\xaa"}
	for range 200 {
		length := block + random.IntN(3*EdgeBytes)
		drive := make([]byte, length)
		for range random.IntN(50) {
			drive[random.IntN(length)] = byte(random.Uint32())
		}
		copy(drive, begins[random.IntN(len(begins))])
		if content := read(t, drive); content.Kind == ContentUnknown || (content.Kind == ContentStore) != (content.Store != nil) {
			t.Fatalf("%+v", content)
		}
	}
	for _, length := range []int{0, 1, block - 1} {
		if _, err := ReadContent(bytes.NewReader(make([]byte, length)), int64(length)); err == nil {
			t.Errorf("%d bytes are a drive", length)
		}
	}
}

// broken fails from some place on.
type broken struct{ at int64 }

func (b broken) ReadAt(p []byte, at int64) (int, error) {
	if at+int64(len(p)) > b.at {
		return 0, errors.New("medium error")
	}
	return len(p), nil
}

func TestADriveThatCanNotBeReadIsNotBlank(t *testing.T) {
	for _, reader := range []io.ReaderAt{broken{0}, broken{size - 1}, bytes.NewReader(make([]byte, size-1))} {
		if content, err := ReadContent(reader, size); err == nil || content.Kind != ContentUnknown {
			t.Errorf("%+v %v", content, err)
		}
	}
}

func TestSignaturesLieInWhatIsRead(t *testing.T) {
	beyond := func(s signature) bool { return s.at+len(s.bytes) > EdgeBytes }
	if slices.ContainsFunc(signatures, beyond) {
		t.Error("a signature is behind what is read of a drive")
	}
}
