package drive

import (
	"fmt"
	"slices"
	"strings"

	"weir.dev/weir/operator/api/v1alpha1"
)

// MinBytes is the least that an engine formats: log, checkpoints and a few pools.
const MinBytes = 64 << 20

// live is the state of an NVMe controller that works. One that is being reset is back in a moment.
var live = []string{"live", "resetting", "connecting"}

// Finding is something that a drive is, with what can be done about it.
type Finding struct {
	// Reason is one of the reasons of NodeDevice conditions.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Owner is the engine's target that a drive is for.
type Owner struct {
	System string
	Rank   int32
	Target int32
}

// Health says what is wrong with the drive itself; nil when nothing is.
func (d *Drive) Health() *Finding {
	switch {
	case d.Problem != "":
		return &Finding{v1alpha1.ReasonUnreadable, d.Problem}
	case len(d.States) > 0 && !slices.ContainsFunc(d.States, func(state string) bool { return slices.Contains(live, state) }):
		return &Finding{v1alpha1.ReasonControllerDown, fmt.Sprintf("its controller is %s: see the node's kernel log", strings.Join(d.States, ", "))}
	case len(d.Warnings) > 0:
		return &Finding{v1alpha1.ReasonHealthWarning, "its health log says: " + strings.Join(d.Warnings, "; ")}
	default:
		return nil
	}
}

// Obstacles are all reasons why the drive can't be given to an engine, the most telling first; none means that it is eligible.
// owner is who it is for; nil when that is nobody yet.
func (d *Drive) Obstacles(owner *Owner) []Finding {
	var found []Finding
	add := func(is bool, reason, format string, args ...any) {
		if is {
			found = append(found, Finding{reason, fmt.Sprintf(format, args...)})
		}
	}
	add(d.Identity == "", v1alpha1.ReasonNoIdentity,
		"it has neither EUI-64, NGUID nor serial number: no other name of it stays the same over a restart")
	// An engine whose data is on a drive that is about to fail copies it, and says itself what it can't do.
	if unhealthy := d.Health(); unhealthy != nil && (owner == nil || unhealthy.Reason != v1alpha1.ReasonHealthWarning) {
		found = append(found, *unhealthy)
	}
	add(d.Problem == "" && d.Content.Kind == ContentUnknown, v1alpha1.ReasonUnreadable, "nobody has looked at its content")
	add(len(d.Mounts) > 0, v1alpha1.ReasonMounted, "mounted at %s", list(d.Mounts))
	add(len(d.Holders) > 0, v1alpha1.ReasonInUse, "used by %s: LVM, RAID or encryption", list(d.Holders))
	add(len(d.Partitions) > 0, v1alpha1.ReasonPartitioned, "has the partitions %s", list(d.Partitions))
	if f := d.Content.obstacle(owner); f != nil {
		found = append(found, *f)
	}
	// What is mounted or held is claimed by that; a drive that has an owner is claimed by its engine.
	add(d.Claimed && owner == nil && len(d.Mounts)+len(d.Holders) == 0, v1alpha1.ReasonInUse,
		"a program has it for itself: mounted in a container, swap space, or another engine's")
	add(d.ReadOnly && owner == nil, v1alpha1.ReasonReadOnly, "takes no writes")
	add(d.Problem == "" && d.Bytes < MinBytes && owner == nil, v1alpha1.ReasonTooSmall, "%d bytes are less than the %d that a target needs", d.Bytes, MinBytes)
	return found
}

// obstacle says why content keeps a drive from its owner; nil when it doesn't.
func (c Content) obstacle(owner *Owner) *Finding {
	const erase = "; it is left as it is: erase the drive by hand (blkdiscard -z) if nobody needs that"
	switch c.Kind {
	case ContentBlank, ContentUnfinished, ContentUnknown:
		return nil // what nobody has looked at is an obstacle of its own
	case ContentStore:
		if owner != nil && owner.System == c.Store.System && int64(owner.Rank) == int64(c.Store.Rank) && int64(owner.Target) == int64(c.Store.Target) {
			return nil
		}
		return &Finding{v1alpha1.ReasonHoldsStore, fmt.Sprintf("holds data of target %d of rank %d of system %s%s",
			c.Store.Target, c.Store.Rank, c.Store.System, erase)}
	case ContentDamagedStore:
		if owner != nil {
			return nil // its engine finds the other copy, or says what is wrong
		}
		return &Finding{v1alpha1.ReasonHoldsStore, "holds a damaged store: " + c.Signature + erase}
	case ContentForeign:
		return &Finding{v1alpha1.ReasonForeignSignature, "holds " + c.Signature + erase}
	default:
		return &Finding{v1alpha1.ReasonForeignSignature, fmt.Sprintf("holds content of the unknown kind %q", c.Kind)}
	}
}

// listed is how many names a message has: enough to know what is meant.
const listed = 4

func list(names []string) string {
	if len(names) <= listed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:listed], ", "), len(names)-listed)
}
