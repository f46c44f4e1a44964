package volume

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Parameters of a StorageClass.
const (
	ParameterPool        = "pool"
	ParameterCluster     = "cluster"
	ParameterObjectClass = "objectClass"
	ParameterChunkSize   = "chunkSize"
	ParameterUID         = "uid"
	ParameterGID         = "gid"
	ParameterMode        = "mode"
	// ParameterIntercept is also an attribute of volumes, which a PersistentVolume made by hand may set.
	ParameterIntercept = "intercept"
)

// Parameters that the provisioner adds when it runs with --extra-create-metadata.
const (
	parameterClaimName      = "csi.storage.k8s.io/pvc/name"
	parameterClaimNamespace = "csi.storage.k8s.io/pvc/namespace"
	parameterVolumeName     = "csi.storage.k8s.io/pv/name"
)

// Attributes of containers that the driver makes.
const (
	// AttributeName holds the name that the orchestrator gave the volume. A container without it was not made by
	// the driver.
	AttributeName           = "csi.weir.dev/name"
	AttributeClaimName      = "csi.weir.dev/pvc-name"
	AttributeClaimNamespace = "csi.weir.dev/pvc-namespace"
	AttributeVolumeName     = "csi.weir.dev/pv-name"
)

const (
	// minChunkBytes and maxChunkBytes bound the chunk size: a page, below which a chunk is smaller than what is read
	// at once, and 1 GiB, above which a file has too few chunks to be spread.
	minChunkBytes = 4 << 10
	maxChunkBytes = 1 << 30
	// maxMode is all permission bits with set-uid, set-gid and sticky.
	maxMode = 0o7777
)

// Parameters say how volumes of a StorageClass are made.
type Parameters struct {
	// Cluster is the system's name; empty means the only one.
	Cluster string
	// Pool is the pool's label.
	Pool string
	// ObjectClass is the default class of the container's objects; empty means the pool's.
	ObjectClass string
	// ChunkSizeBytes of files; 0 means the engines' default.
	ChunkSizeBytes uint64
	// UID, GID and Mode of the volume's root directory; mode 0 means the engines' default.
	UID, GID, Mode uint32
	// Intercept tells whether programs of pods may access the volume's files past the mount.
	Intercept bool
	// Attributes of the claim that the volume is made for.
	Attributes map[string]string
}

// setters hold how each known parameter is read. A setter's error says what a good value is.
var setters = map[string]func(*Parameters, string) error{
	ParameterPool:           func(p *Parameters, v string) error { p.Pool = v; return checkPart(v) },
	ParameterCluster:        func(p *Parameters, v string) error { p.Cluster = v; return checkPart(v) },
	ParameterObjectClass:    func(p *Parameters, v string) error { p.ObjectClass = v; return checkPart(v) },
	ParameterChunkSize:      setChunkSize,
	ParameterUID:            func(p *Parameters, v string) error { return setNumber(&p.UID, v) },
	ParameterGID:            func(p *Parameters, v string) error { return setNumber(&p.GID, v) },
	ParameterMode:           setMode,
	ParameterIntercept:      func(p *Parameters, v string) (err error) { p.Intercept, err = parseBool(v); return err },
	parameterClaimName:      setAttribute(AttributeClaimName),
	parameterClaimNamespace: setAttribute(AttributeClaimNamespace),
	parameterVolumeName:     setAttribute(AttributeVolumeName),
}

// ParseParameters reads the parameters of a StorageClass. An unknown one is an error that lists the known ones: a
// misspelt parameter must not silently give another volume than was meant.
func ParseParameters(parameters map[string]string) (*Parameters, error) {
	parsed := &Parameters{Attributes: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		set, known := setters[name]
		if !known {
			return nil, fmt.Errorf("parameter %q of the StorageClass is unknown; known parameters: %s", clip(name), knownParameters())
		}
		if err := set(parsed, parameters[name]); err != nil {
			return nil, fmt.Errorf("parameter %q of the StorageClass: %w", name, err)
		}
	}
	return parsed, nil
}

// knownParameters lists the parameters that a user sets.
func knownParameters() string {
	names := slices.Sorted(maps.Keys(setters))
	names = slices.DeleteFunc(names, func(name string) bool { return strings.Contains(name, "/") })
	return strings.Join(names, ", ")
}

func checkPart(value string) error {
	if len(value) > maxLabelBytes || !partPattern.MatchString(value) {
		return fmt.Errorf("%q is not a name: use letters, digits, '.', '_' and '-', at most %d", clip(value), maxLabelBytes)
	}
	return nil
}

func setChunkSize(p *Parameters, value string) error {
	quantity, err := resource.ParseQuantity(value)
	if err != nil {
		return fmt.Errorf("%q is not a size: give one such as 1Mi", clip(value))
	}
	size := quantity.Value()
	if size < minChunkBytes || size > maxChunkBytes || size&(size-1) != 0 {
		return fmt.Errorf("%q is not served: give a power of two from 4Ki to 1Gi", clip(value))
	}
	p.ChunkSizeBytes = uint64(size)
	return nil
}

func setNumber(field *uint32, value string) error {
	number, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return fmt.Errorf("%q is not a numeric id from 0 to 2147483647", clip(value))
	}
	*field = uint32(number)
	return nil
}

func setMode(p *Parameters, value string) error {
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mode == 0 || mode > maxMode {
		return fmt.Errorf("%q is not a mode: give octal permission bits such as 0770", clip(value))
	}
	p.Mode = uint32(mode)
	return nil
}

func parseBool(value string) (bool, error) {
	switch value {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("%q is neither \"true\" nor \"false\"", clip(value))
	}
}

// Intercepts tells whether programs of pods may access a volume's files past the mount, by the volume's attributes.
func Intercepts(attributes map[string]string) (bool, error) {
	value, set := attributes[ParameterIntercept]
	if !set {
		return false, nil
	}
	allowed, err := parseBool(value)
	if err != nil {
		return false, fmt.Errorf("attribute %q of the volume: %w", ParameterIntercept, err)
	}
	return allowed, nil
}

func setAttribute(attribute string) func(*Parameters, string) error {
	return func(p *Parameters, value string) error {
		p.Attributes[attribute] = value
		return nil
	}
}
