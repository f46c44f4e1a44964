// Package assignment decides which target of which engine has which drive. Its functions are pure. A target that has a drive keeps
// it, because its data is there, until the drive has failed and another one is there to take its place.
package assignment

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.dev/weir/operator/api/v1alpha1"
)

// +kubebuilder:rbac:groups=storage.weir.dev,resources=nodedevices,verbs=get;list;watch;patch

// Patience is how long a drive may be away before another one takes its place: somebody who puts it into another slot, or starts
// its node again, is done by then.
const Patience = 10 * time.Minute

// lost are the reasons for which a drive gets a replacement: an engine can't do anything with it. One that is about to wear out is
// copied by hand while it can be read.
var lost = []string{v1alpha1.ReasonAbsent, v1alpha1.ReasonUnreadable, v1alpha1.ReasonControllerDown}

// Want is what a StorageCluster asks for.
type Want struct {
	Namespace, Cluster string
	// Count of drives for each engine.
	Count int32
	// MinBytes is the least size of a drive.
	MinBytes int64
	// Selector limits the drives by their labels.
	Selector labels.Selector
	// Nodes has the node of each rank.
	Nodes map[int32]string
}

// Slot is a target of an engine.
type Slot struct{ Rank, Target int32 }

// Gift is a drive that a target gets.
type Gift struct {
	Device *v1alpha1.NodeDevice
	To     v1alpha1.DeviceAssignment
}

// Removal is a drive that is taken away, because another one takes its place.
type Removal struct {
	Device *v1alpha1.NodeDevice
	// Why is what happened to it.
	Why string
}

// Decision is what has to be done, and what can't be.
type Decision struct {
	// Have are the drives that targets have, whatever state they are in.
	Have map[Slot]*v1alpha1.NodeDevice
	// Remove is done before Give.
	Remove []Removal
	Give   []Gift
	// Missing says for which targets there is no drive, by rank.
	Missing map[int32]string
	// Failed says which drives have failed and have no replacement.
	Failed []string
	// Recheck is when something that is waited for is over; zero when nothing is.
	Recheck time.Duration
}

// Decide finds out what has to be done.
func Decide(want Want, devices []v1alpha1.NodeDevice, now time.Time) Decision {
	d := Decision{Have: map[Slot]*v1alpha1.NodeDevice{}, Missing: map[int32]string{}}
	twice := map[Slot][]string{}
	for i := range devices {
		device := &devices[i]
		if !want.owns(device) {
			continue
		}
		slot := Slot{device.Spec.Assignment.Rank, device.Spec.Assignment.Target}
		twice[slot] = append(twice[slot], device.Name)
		d.Have[slot] = device
	}
	ranks := make([]int32, 0, len(want.Nodes))
	for rank := range want.Nodes {
		ranks = append(ranks, rank)
	}
	slices.Sort(ranks)
	free := map[string][]*v1alpha1.NodeDevice{}
	for _, rank := range ranks {
		node := want.Nodes[rank]
		if _, known := free[node]; !known {
			free[node], _ = want.candidates(node, devices)
		}
		for target := range want.Count {
			slot := Slot{rank, target}
			if names := twice[slot]; len(names) > 1 {
				delete(d.Have, slot)
				d.miss(rank, fmt.Sprintf("target %d has the drives %s: remove spec.assignment of all NodeDevices but the right one", target, strings.Join(names, " and ")))
				continue
			}
			free[node] = d.fill(want, slot, free[node], devices, now)
		}
	}
	return d
}

// fill gives a target a drive if it needs one, and returns those that are left.
func (d *Decision) fill(want Want, slot Slot, free []*v1alpha1.NodeDevice, devices []v1alpha1.NodeDevice, now time.Time) []*v1alpha1.NodeDevice {
	node := want.Nodes[slot.Rank]
	if have := d.Have[slot]; have != nil {
		if have.Status.Node != node {
			d.Failed = append(d.Failed, fmt.Sprintf("drive %s of rank %d target %d is in node %s: put it back into node %s, which has the engine",
				have.Name, slot.Rank, slot.Target, have.Status.Node, node))
			return free
		}
		why, since, is := failure(have)
		if !is {
			return free
		}
		if left := Patience - now.Sub(since); left > 0 {
			d.Failed = append(d.Failed, fmt.Sprintf("drive %s of rank %d target %d: %s; it is replaced if it is not back in %s",
				have.Name, slot.Rank, slot.Target, why, left.Round(time.Second)))
			if d.Recheck == 0 || left < d.Recheck {
				d.Recheck = left
			}
			return free
		}
		if len(free) == 0 {
			d.Failed = append(d.Failed, fmt.Sprintf("drive %s of rank %d target %d: %s; no other drive of node %s can take its place",
				have.Name, slot.Rank, slot.Target, why, node))
			return free
		}
		d.Remove = append(d.Remove, Removal{Device: have, Why: why})
		delete(d.Have, slot)
	}
	if len(free) == 0 {
		_, why := want.candidates(node, devices)
		d.miss(slot.Rank, fmt.Sprintf("node %s has no drive for target %d: %s", node, slot.Target, why))
		return free
	}
	d.Give = append(d.Give, Gift{Device: free[0], To: v1alpha1.DeviceAssignment{
		Namespace: want.Namespace, Cluster: want.Cluster, Rank: slot.Rank, Target: slot.Target,
	}})
	d.Have[slot] = free[0]
	return free[1:]
}

func (d *Decision) miss(rank int32, why string) {
	if d.Missing[rank] == "" {
		d.Missing[rank] = why
	}
}

// failure says what has happened to a drive that an engine can do nothing with, and when.
func failure(device *v1alpha1.NodeDevice) (why string, since time.Time, is bool) {
	c := meta.FindStatusCondition(device.Status.Conditions, v1alpha1.ConditionHealthy)
	if c == nil || c.Status != metav1.ConditionFalse || !slices.Contains(lost, c.Reason) {
		return "", time.Time{}, false
	}
	return c.Reason + ": " + c.Message, c.LastTransitionTime.Time, true
}

func (w Want) owns(device *v1alpha1.NodeDevice) bool {
	at := device.Spec.Assignment
	return at != nil && at.Namespace == w.Namespace && at.Cluster == w.Cluster
}

// candidates are the drives of a node that a target may get, the smallest first, and why the others can't.
func (w Want) candidates(node string, devices []v1alpha1.NodeDevice) (fit []*v1alpha1.NodeDevice, why string) {
	unfit := map[string]int{}
	for i := range devices {
		device := &devices[i]
		if device.Status.Node != node {
			continue
		}
		if problem := w.problem(device); problem != "" {
			unfit[problem]++
			continue
		}
		fit = append(fit, device)
	}
	slices.SortFunc(fit, func(a, b *v1alpha1.NodeDevice) int {
		return cmp.Or(a.Status.Size.Cmp(*b.Status.Size), strings.Compare(a.Name, b.Name))
	})
	if len(fit)+len(unfit) == 0 {
		return nil, "no NodeDevice is on it: does the agent of drives run there (devices.enabled of the chart)?"
	}
	problems := make([]string, 0, len(unfit))
	for problem, count := range unfit {
		problems = append(problems, fmt.Sprintf("%d %s", count, problem))
	}
	slices.Sort(problems)
	return fit, fmt.Sprintf("of its drives %d may be taken, the others not: %s (kubectl get nodedevices -o wide)", len(fit), strings.Join(problems, ", "))
}

// problem says why a target can't get a drive, by a reason of conditions; empty when it can.
func (w Want) problem(device *v1alpha1.NodeDevice) string {
	switch {
	case device.Spec.Assignment != nil:
		return v1alpha1.ReasonAssigned
	case !device.DeletionTimestamp.IsZero():
		return v1alpha1.ReasonDeleting
	case !meta.IsStatusConditionTrue(device.Status.Conditions, v1alpha1.ConditionReady) ||
		!meta.IsStatusConditionTrue(device.Status.Conditions, v1alpha1.ConditionHealthy):
		for _, c := range device.Status.Conditions {
			if c.Status != metav1.ConditionTrue {
				return c.Reason
			}
		}
		return "not looked at yet"
	case device.Status.Size == nil || device.Status.Size.Value() < w.MinBytes:
		return v1alpha1.ReasonTooSmall
	case !w.Selector.Matches(labels.Set(device.Labels)):
		return "not selected"
	default:
		return ""
	}
}

// Shortage says why a node can't take an engine of the cluster; empty when it can.
func (w Want) Shortage(node string, devices []v1alpha1.NodeDevice) string {
	fit, why := w.candidates(node, devices)
	if int32(len(fit)) >= w.Count {
		return ""
	}
	return fmt.Sprintf("%d drives needed; %s", w.Count, why)
}
