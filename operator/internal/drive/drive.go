// Package drive finds the drives of a node, and says of each whether an engine may have it, or why not. It reads sysfs, the
// list of mounts, and the first and last bytes of a drive, and it writes nothing.
package drive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"strings"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Drive is a namespace of an NVMe drive, or what stands in for one, as its node sees it.
type Drive struct {
	// Identity is the drive's own, whatever slot and machine it is in; empty when it has none.
	Identity string `json:"identity"`
	// KernelName is what the kernel calls it until the next start, such as nvme0n1.
	KernelName string             `json:"kernelName"`
	Kind       v1alpha1.DriveKind `json:"kind"`
	Model      string             `json:"model,omitempty"`
	Serial     string             `json:"serial,omitempty"`
	Firmware   string             `json:"firmware,omitempty"`
	// Bytes is its size.
	Bytes int64 `json:"bytes"`
	// Major and Minor are its number at the kernel.
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// NUMANode that it is attached to; nil when the platform names none.
	NUMANode *int32 `json:"numaNode,omitempty"`
	// PCIAddress of its controller; empty for drives that are on a network.
	PCIAddress string `json:"pciAddress,omitempty"`
	// Driver of its controller.
	Driver string `json:"driver,omitempty"`
	// States of its controllers, in the words of the kernel.
	States []string `json:"states,omitempty"`
	// ReadOnly is true when the drive takes no writes.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Partitions on it, by the kernel's names.
	Partitions []string `json:"partitions,omitempty"`
	// Holders are devices that are made of it or its partitions: LVM, RAID, encryption.
	Holders []string `json:"holders,omitempty"`
	// Mounts are where it or its partitions are mounted.
	Mounts []string `json:"mounts,omitempty"`
	// Claimed is true when a program has it for itself.
	Claimed bool `json:"claimed,omitempty"`
	// Content is what is on it.
	Content Content `json:"content"`
	// Problem is why it could not be looked at.
	Problem string `json:"problem,omitempty"`
	// Warnings of its health log.
	Warnings []string `json:"warnings,omitempty"`
}

const (
	// labelBytes is the longest label of a DNS name. Names of devices in resource slices are such labels.
	labelBytes = 63
	// digestBytes of SHA-256 tell more drives apart than there will ever be.
	digestBytes = 16
)

var unfitting = regexp.MustCompile(`[^a-z0-9]+`)

// Name is what the drive of an identity is called in Kubernetes: the same on every node.
func Name(identity string) string {
	kind, _, _ := strings.Cut(identity, ".")
	plain := strings.Trim(unfitting.ReplaceAllString(strings.ToLower(identity), "-"), "-")
	if kind == "eui" || kind == "uuid" {
		plain = "nvme-" + plain
	}
	// Letters, digits and single dashes of lower case are as unique as the identity itself only for these two kinds.
	if (kind == "eui" || kind == "uuid") && len(plain) <= labelBytes {
		return plain
	}
	digest := sha256.Sum256([]byte(identity))
	prefix := "nvme-"
	if kind == loopKind {
		prefix = "loop-"
	}
	return prefix + hex.EncodeToString(digest[:digestBytes])
}

const (
	// resourcePrefix begins the names of resources of the device plugin.
	resourcePrefix = "weir.dev/nvme-"
	// resourceBytes of SHA-256 tell the engines of a node apart.
	resourceBytes = 10
	// Driver is the name of the driver of dynamic resource allocation.
	Driver = "nvme.weir.dev"
	// AttributeEngine says which engine a drive is for, among the attributes of Driver's devices.
	AttributeEngine = "engine"
	// AttributeTarget says which of the engine's targets.
	AttributeTarget = "target"
	// containerFolder is where an engine's container has its drives.
	containerFolder = "/dev/weir"
	// EngineUser is the numeric user and group of engines, to whom the device files of their drives belong.
	EngineUser = 10777
)

// Engine is what stands for an engine among those of all clusters.
func Engine(namespace, cluster string, rank int32) string {
	digest := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", namespace, cluster, rank))
	return hex.EncodeToString(digest[:resourceBytes])
}

// Resource is the name under which the kubelet knows the drives of an engine.
func Resource(namespace, cluster string, rank int32) string {
	return resourcePrefix + Engine(namespace, cluster, rank)
}

// ContainerPath is where an engine's container has the drive of a target.
func ContainerPath(target int32) string { return fmt.Sprintf("%s/target-%d", containerFolder, target) }

// loopKind begins the identity of a loop device.
const loopKind = "loop"

// loopIdentity of the loop device on a file: the name that whoever made the file gave it.
func loopIdentity(backingFile string) string { return loopKind + "." + path.Base(backingFile) }

var (
	// nvmeIdentity is what the kernel writes of a namespace: EUI-64 or NGUID, UUID, or maker, serial number, model and number.
	nvmeIdentity = regexp.MustCompile(`^(eui\.[0-9a-f]{16}([0-9a-f]{16})?|uuid\.[0-9a-f-]{36}|nvme\.[0-9a-f]{4}(-[0-9a-f]+){2}-[0-9a-f]{8})$`)
	// nameless are identities that tell no drive from another: their number is zeros or blanks.
	nameless = regexp.MustCompile(`^(eui\.0+|uuid\.[0-]+|nvme\.[0-9a-f]{4}-(20|00|30)*-.*)$`)
)

// identityOf the namespace of an NVMe drive by what sysfs says; empty when that tells it from no other.
func identityOf(wwid string) string {
	wwid = strings.ToLower(wwid)
	if !nvmeIdentity.MatchString(wwid) || nameless.MatchString(wwid) {
		return ""
	}
	return wwid
}
