package drive

import (
	"bytes"
	"encoding/binary"
)

// signature is how somebody's content is recognised: these bytes at this place.
type signature struct {
	at    int
	bytes string
	name  string
}

// signatures of what is commonly found on drives. What isn't in the list is still no zero: it is left alone as unknown data.
// A page of memory, which swap space goes by, has 4, 16 or 64 KiB.
var signatures = []signature{
	{1080, "\x53\xef", "an ext2, ext3 or ext4 file system"},
	{0, "XFSB", "an XFS file system"},
	{65536 + 64, "_BHRfS_M", "a btrfs file system"},
	{1024, "\x10\x20\xf5\xf2", "an F2FS file system"},
	{3, "NTFS    ", "an NTFS file system"},
	{3, "EXFAT   ", "an exFAT file system"},
	{54, "FAT", "a FAT file system"},
	{82, "FAT32", "a FAT file system"},
	{0, "hsqs", "a squashfs file system"},
	{32769, "CD001", "an ISO 9660 file system"},
	{65536, "\x01\x16\x19\x70", "a GFS2 file system"},
	{0, "LABELONE", "an LVM physical volume"},
	{512, "LABELONE", "an LVM physical volume"},
	{1024, "LABELONE", "an LVM physical volume"},
	{1536, "LABELONE", "an LVM physical volume"},
	{0, "LUKS\xba\xbe", "a LUKS volume"},
	{16384, "SKUL\xba\xbe", "a LUKS volume"},
	{4096 - 10, "SWAPSPACE2", "swap space"},
	{16384 - 10, "SWAPSPACE2", "swap space"},
	{65536 - 10, "SWAPSPACE2", "swap space"},
	{4096 - 10, "SWAP-SPACE", "swap space"},
	{0, "\xfc\x4e\x2b\xa9", "a member of a RAID array (md)"},
	{4096, "\xfc\x4e\x2b\xa9", "a member of a RAID array (md)"},
	{4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcache device"},
	{0, "bluestore block device", "a Ceph OSD (BlueStore)"},
	{0, "SPDKBLOB", "an SPDK blobstore"},
	{512, "EFI PART", "a GPT partition table"},
	{4096, "EFI PART", "a GPT partition table"},
	{510, "\x55\xaa", "a partition table or boot sector"},
}

const (
	// ZFS has four labels of 256 KiB, two at either end, whose second half is a ring of uberblocks of at least 1 KiB.
	zfsLabel     = 256 << 10
	zfsRing      = 128 << 10
	zfsUberblock = 1 << 10
	zfsMagic     = 0x00bab10c
	// The superblock of md before version 1.1 is at the drive's end: version 1.0 8 to 12 KiB before it, at a multiple of 4 KiB,
	// version 0.90 64 to 128 KiB before it, at a multiple of 64 KiB.
	mdMagic   = 0xa92b4efc
	mdOne     = 8 << 10
	mdOneStep = 4 << 10
	mdOld     = 64 << 10
)

// signatureOf names the content that begins and ends with these bytes, where it is known and not ours; empty when it isn't.
func signatureOf(start, end []byte, size int64) string {
	for _, s := range signatures {
		if s.at <= len(start) && bytes.HasPrefix(start[s.at:], []byte(s.bytes)) {
			return s.name
		}
	}
	if isZFS(start) || isZFS(end) {
		return "a member of a ZFS pool"
	}
	// Where the drive's end is in what was read of it.
	first := size - int64(len(end))
	for _, at := range []int64{(size - mdOne) / mdOneStep * mdOneStep, size/mdOld*mdOld - mdOld} {
		if at -= first; at >= 0 && at+4 <= int64(len(end)) && binary.LittleEndian.Uint32(end[at:]) == mdMagic {
			return "a member of a RAID array (md)"
		}
	}
	for _, sector := range []int{512, 4096} {
		if at := len(end) - sector; at >= 0 && bytes.HasPrefix(end[at:], []byte("EFI PART")) {
			return "a GPT partition table (its copy)"
		}
	}
	return ""
}

// isZFS looks for an uberblock in the labels of one end.
func isZFS(edge []byte) bool {
	for label := 0; label+zfsLabel <= len(edge); label += zfsLabel {
		for at := label + zfsRing; at < label+zfsLabel; at += zfsUberblock {
			word := edge[at : at+8]
			if binary.LittleEndian.Uint64(word) == zfsMagic || binary.BigEndian.Uint64(word) == zfsMagic {
				return true
			}
		}
	}
	return false
}
