package volume

import (
	"errors"
	"fmt"
	"math"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// DefaultBytes is the quota of a volume that nobody gave a size.
const DefaultBytes = 1 << 30

// ErrBlockAccess says that a volume was asked for as a block device.
var ErrBlockAccess = errors.New("raw block volumes are not served: use volumeMode Filesystem")

// servedModes are the access modes that every volume serves. A container is a file system that any number of nodes may
// mount, so the modes differ only in what the driver refuses. MULTI_NODE_SINGLE_WRITER is not among them: nodes don't know of each other,
// and nothing would keep a second one from writing. Kubernetes has no access mode that leads to it.
var servedModes = map[csi.VolumeCapability_AccessMode_Mode]bool{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER:        true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:   true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER: true,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:  true,
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:    true,
	csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:   true,
}

// CheckCapability tells why a volume cannot be used as capability asks; nil if it can.
func CheckCapability(capability *csi.VolumeCapability) error {
	if capability == nil {
		return errors.New("volume capability is missing")
	}
	switch mode := capability.GetAccessMode().GetMode(); {
	case mode == csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER:
		return fmt.Errorf("access mode %v is not served, since nothing would keep a second node from writing: use %v (ReadWriteMany)",
			mode, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	case !servedModes[mode]:
		return fmt.Errorf("access mode %v is not served", mode)
	}
	switch access := capability.GetAccessType().(type) {
	case *csi.VolumeCapability_Mount:
		if fsType := access.Mount.GetFsType(); fsType != "" && fsType != "weir" {
			return fmt.Errorf("file system type %q is not served: a volume is a Weir file system; leave fsType empty", clip(fsType))
		}
		return nil
	case *csi.VolumeCapability_Block:
		return ErrBlockAccess
	default:
		return errors.New("volume capability has no access type")
	}
}

// CheckCapabilities applies CheckCapability to a non-empty list.
func CheckCapabilities(capabilities []*csi.VolumeCapability) error {
	if len(capabilities) == 0 {
		return errors.New("volume capabilities are missing")
	}
	for _, capability := range capabilities {
		if err := CheckCapability(capability); err != nil {
			return err
		}
	}
	return nil
}

// ReaderOnly tells whether the access mode allows no writer at all.
func ReaderOnly(capability *csi.VolumeCapability) bool {
	switch capability.GetAccessMode().GetMode() {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		return true
	default:
		return false
	}
}

// SinglePod tells whether the access mode allows one pod only (ReadWriteOncePod).
func SinglePod(capability *csi.VolumeCapability) bool {
	return capability.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
}

// unitBytes is what quotas are multiples of: a file system of one unit can be mounted, and take small files.
const unitBytes = 1 << 20

// ErrCapacity says that no volume is of a size that a capacity range allows.
var ErrCapacity = errors.New("no volume has such a size")

// Size returns the quota in bytes for a capacity range, in whole mebibytes.
func Size(capacity *csi.CapacityRange) (uint64, error) {
	required, limit := capacity.GetRequiredBytes(), capacity.GetLimitBytes()
	switch {
	case required < 0 || limit < 0:
		return 0, fmt.Errorf("capacity range %d to %d is negative", required, limit)
	case limit != 0 && required > limit:
		return 0, fmt.Errorf("capacity range is empty: %d bytes are required, but %d are the limit", required, limit)
	case required != 0:
		size := (uint64(required) + unitBytes - 1) / unitBytes * unitBytes
		if limit != 0 && size > uint64(limit) {
			return 0, fmt.Errorf("%w: sizes are multiples of 1Mi, and the limit is %d bytes: ask for %s", ErrCapacity, limit, SizeText(size))
		}
		return size, nil
	case limit != 0 && limit < unitBytes:
		return 0, fmt.Errorf("%w: the least is 1Mi, and the limit is %d bytes", ErrCapacity, limit)
	case limit != 0:
		return min(uint64(limit)/unitBytes*unitBytes, DefaultBytes), nil
	default:
		return DefaultBytes, nil
	}
}

// Fits tells whether a volume of quota bytes satisfies a capacity range. A quota of 0 means no limit.
func Fits(quota uint64, capacity *csi.CapacityRange) bool {
	required, limit := capacity.GetRequiredBytes(), capacity.GetLimitBytes()
	if quota == 0 {
		return limit == 0
	}
	return uint64(max(required, 0)) <= quota && (limit <= 0 || quota <= uint64(limit))
}

// SizeText writes a size as people write it in a claim, rounded down to a tenth of its unit.
func SizeText(size uint64) string {
	for i, unit := range []string{"Ti", "Gi", "Mi", "Ki"} {
		one := uint64(1) << (40 - 10*i)
		switch {
		case size < one:
		case size%one < one/10:
			return fmt.Sprintf("%d%s", size/one, unit)
		default:
			return fmt.Sprintf("%d.%d%s", size/one, size%one*10/one, unit)
		}
	}
	return fmt.Sprintf("%d bytes", size)
}

// Bytes returns a size as CSI carries it.
func Bytes(size uint64) int64 {
	return int64(min(size, math.MaxInt64))
}
