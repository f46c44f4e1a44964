// Package volume holds what a CSI volume is in Weir: a container of a pool of a system. Pure functions only.
package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

const (
	// DriverName is the CSI name of the driver.
	DriverName = "csi.weir.dev"

	// MaxIDBytes bounds a volume id: the CSI specification's general limit on a string field.
	MaxIDBytes = 128
	// maxLabelBytes bounds the label of a container: what DAOS clients can hold (DAOS_PROP_LABEL_MAX_LEN).
	maxLabelBytes = 127
	// hashBytes of SHA-256 make a label of a name that cannot be one itself: 2^64 names until a collision is likely.
	hashBytes = 16
)

// ErrMalformedID says that a volume id was not made by this driver, nor has the form of a static one.
var ErrMalformedID = errors.New("malformed volume id")

// ID names a volume. Volumes made by the driver name pool and container by UUID, so that a new pool or container of the
// same label is never mistaken for the old one; a static PersistentVolume may name both by label.
type ID struct {
	// System is the system's name, as in the attach file.
	System string
	// Pool and Container are UUID texts or labels.
	Pool      string
	Container string
}

var (
	systemPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$`)
	// partPattern has the characters of labels as engines take them (engine/proto), and of UUIDs.
	partPattern  = regexp.MustCompile(`^[A-Za-z0-9._:-]+$`)
	labelPattern = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)
	notLabel     = regexp.MustCompile(`[^A-Za-z0-9]+`)
	uuidPattern  = regexp.MustCompile(`^[0-9A-Fa-f]{8}-?([0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}$`)
)

// String returns the id as it stands in a volume handle: system/pool/container.
func (id ID) String() string {
	return id.System + "/" + id.Pool + "/" + id.Container
}

// ParseID reads a volume handle. Its error wraps ErrMalformedID.
func ParseID(text string) (ID, error) {
	parts := strings.Split(text, "/")
	if len(text) > MaxIDBytes || len(parts) != 3 {
		return ID{}, fmt.Errorf("%w %q: want <cluster>/<pool>/<container>, at most %d bytes", ErrMalformedID, clip(text), MaxIDBytes)
	}
	if !systemPattern.MatchString(parts[0]) {
		return ID{}, fmt.Errorf("%w %q: %q is not the name of a cluster", ErrMalformedID, clip(text), clip(parts[0]))
	}
	for _, part := range parts[1:] {
		if !partPattern.MatchString(part) || strings.Trim(part, ".") == "" {
			return ID{}, fmt.Errorf("%w %q: %q is neither a label nor a UUID", ErrMalformedID, clip(text), clip(part))
		}
	}
	return ID{System: parts[0], Pool: parts[1], Container: parts[2]}, nil
}

// clip shortens hostile text for an error message.
func clip(text string) string {
	if len(text) > MaxIDBytes {
		return strings.ToValidUTF8(text[:MaxIDBytes], "") + "…"
	}
	return text
}

// Label returns the container label of the volume that the orchestrator names so. The same name gives the same label,
// and two names never give the same one. A name that is itself a label, as Kubernetes' are, is
// kept; one that reads as a UUID is no label.
func Label(name string) string {
	if len(name) <= maxLabelBytes && labelPattern.MatchString(name) && !uuidPattern.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	readable := strings.Trim(notLabel.ReplaceAllString(name, "-"), "-")
	suffix := "-" + hex.EncodeToString(sum[:hashBytes])
	// "v-" makes the first character a letter, whatever the name starts with.
	return "v-" + readable[:min(len(readable), maxLabelBytes-len("v-")-len(suffix))] + suffix
}
