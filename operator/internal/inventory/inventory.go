// Package inventory keeps the NodeDevices of a node as its drives are. It runs on the node, once in every interval and when
// somebody's drives change hands.
package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/status"
)

// What the agent of a node may do: see the drives of all, because a drive may come from another node, and whether that node works.
// +kubebuilder:rbac:groups=storage.weir.dev,resources=nodedevices,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=storage.weir.dev,resources=nodedevices/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

const (
	// Interval between two looks at a node's drives: what fails is known within it.
	Interval = 15 * time.Second
	// fieldOwner is the name under which agents own fields.
	fieldOwner = "weir-drives"
)

// Finder tells what drives a node has, and what is on them.
type Finder interface {
	Find() ([]drive.Drive, error)
	// Look fills in what Find doesn't know. owned is true for a drive that is an engine's.
	Look(d *drive.Drive, owned bool)
}

// Seen is a drive that the node has, with what Kubernetes knows of it.
type Seen struct {
	// Name of the NodeDevice; empty for a drive without identity.
	Name  string      `json:"name"`
	Drive drive.Drive `json:"drive"`
	// Assignment of the drive; nil when it is nobody's.
	Assignment *v1alpha1.DeviceAssignment `json:"assignment,omitempty"`
	// Obstacles are why it can't be given to the target that it is assigned to or, if it is nobody's, to any.
	Obstacles []drive.Finding `json:"obstacles,omitempty"`
}

// Agent keeps the NodeDevices of a node.
type Agent struct {
	client   client.Client
	live     client.Reader
	reporter *status.Reporter
	node     string
	finder   Finder
}

// New makes an agent for a node. live reads past the cache, which holds only what this node had last.
func New(c client.Client, live client.Reader, recorder status.Recorder, passive clock.PassiveClock, node string, finder Finder) *Agent {
	return &Agent{client: c, live: live, reporter: status.NewReporter(recorder, passive), node: node, finder: finder}
}

// Look tells what drives a node has, without Kubernetes, and changes nothing.
func Look(finder Finder) ([]Seen, error) {
	drives, err := finder.Find()
	if err != nil {
		return nil, err
	}
	list := make([]Seen, 0, len(drives))
	for _, d := range drives {
		finder.Look(&d, false)
		seen := Seen{Drive: d, Obstacles: d.Obstacles(nil)}
		if d.Identity != "" {
			seen.Name = drive.Name(d.Identity)
		}
		list = append(list, seen)
	}
	return list, nil
}

// Scan looks at the node's drives, writes what is new about them, and returns those that are this node's; nil when nothing could be
// found out.
func (a *Agent) Scan(ctx context.Context) ([]Seen, error) {
	drives, err := a.finder.Find()
	if err != nil {
		return nil, err
	}
	var known v1alpha1.NodeDeviceList
	if err := a.client.List(ctx, &known, client.MatchingLabels{v1alpha1.LabelNode: a.node}); err != nil {
		return nil, fmt.Errorf("list the NodeDevices of node %s: %w", a.node, err)
	}
	list := []Seen{}
	var problems []error
	holders := map[string][]string{}
	for _, d := range drives {
		holders[d.Identity] = append(holders[d.Identity], d.KernelName)
	}
	found := map[string]bool{}
	for _, d := range drives {
		if d.Identity == "" {
			log.FromContext(ctx).Info("A drive has no identity and is left alone", "drive", d.KernelName)
			continue
		}
		name := drive.Name(d.Identity)
		if found[name] {
			continue
		}
		found[name] = true
		if same := holders[d.Identity]; len(same) > 1 {
			d.Problem = "drives of one node have the same identity: " + strings.Join(same, ", ")
		}
		seen, err := a.record(ctx, name, d)
		if err != nil {
			problems = append(problems, err)
		}
		if seen != nil {
			list = append(list, *seen)
		}
	}
	for i := range known.Items {
		if device := &known.Items[i]; !found[device.Name] {
			if err := a.miss(ctx, device); err != nil {
				problems = append(problems, err)
			}
		}
	}
	return list, errors.Join(problems...)
}

// record looks at a drive and writes what is new about it. It returns nil for a drive that another node has.
func (a *Agent) record(ctx context.Context, name string, d drive.Drive) (*Seen, error) {
	device, err := a.ensure(ctx, name)
	if err != nil {
		return nil, err
	}
	elsewhere, err := a.isElsewhere(ctx, device)
	if err != nil {
		return nil, err
	}
	if elsewhere {
		a.reporter.Event(device, corev1.EventTypeWarning, v1alpha1.ReasonSeenElsewhere, "Scan", fmt.Sprintf(
			"node %s has a drive of this identity too (%s), and leaves it alone while node %s has it", a.node, d.KernelName, device.Status.Node))
		return nil, nil
	}
	a.finder.Look(&d, device.Spec.Assignment != nil)
	seen := &Seen{Name: name, Drive: d, Assignment: device.Spec.Assignment}
	seen.Obstacles = d.Obstacles(Owner(device.Spec.Assignment))
	before := device.DeepCopy()
	a.describe(ctx, device, seen)
	return seen, a.write(ctx, device, before)
}

// Take looks at a drive that is about to be given to the engine that it is assigned to, and fails with the reason if it must not be.
func (a *Agent) Take(ctx context.Context, name string) (*Seen, error) {
	refused := func(why string) error { return fmt.Errorf("drive %s is not given to anybody: %s", name, why) }
	drives, err := a.finder.Find()
	if err != nil {
		return nil, err
	}
	var device v1alpha1.NodeDevice
	if err := a.live.Get(ctx, client.ObjectKey{Name: name}, &device); err != nil {
		return nil, fmt.Errorf("read NodeDevice %s: %w", name, err)
	}
	if device.Spec.Assignment == nil {
		return nil, refused("it is assigned to no engine")
	}
	if device.Status.Node != a.node {
		return nil, refused("node " + device.Status.Node + " has it")
	}
	drives = slices.DeleteFunc(drives, func(d drive.Drive) bool { return d.Identity == "" || drive.Name(d.Identity) != name })
	if len(drives) != 1 {
		return nil, refused(fmt.Sprintf("node %s has %d drives of its identity", a.node, len(drives)))
	}
	d := drives[0]
	a.finder.Look(&d, true)
	if obstacles := d.Obstacles(Owner(device.Spec.Assignment)); len(obstacles) > 0 {
		return nil, refused(obstacles[0].Reason + ": " + obstacles[0].Message)
	}
	return &Seen{Name: name, Drive: d, Assignment: device.Spec.Assignment}, nil
}

// Owner is the target that a drive is assigned to; nil when it is nobody's.
func Owner(assignment *v1alpha1.DeviceAssignment) *drive.Owner {
	if assignment == nil {
		return nil
	}
	return &drive.Owner{System: assignment.Cluster, Rank: assignment.Rank, Target: assignment.Target}
}

// ensure reads the NodeDevice of a drive, and makes it when there is none.
func (a *Agent) ensure(ctx context.Context, name string) (*v1alpha1.NodeDevice, error) {
	device := &v1alpha1.NodeDevice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, reader := range []client.Reader{a.client, a.live} {
		err := reader.Get(ctx, client.ObjectKeyFromObject(device), device)
		if err == nil {
			return device, nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read NodeDevice %s: %w", name, err)
		}
	}
	device.Labels = map[string]string{v1alpha1.LabelNode: a.node}
	if err := a.client.Create(ctx, device, client.FieldOwner(fieldOwner)); err != nil {
		return nil, fmt.Errorf("create NodeDevice %s: %w", name, err)
	}
	return device, nil
}

// isElsewhere tells whether another node that works has the drive. Two nodes have one drive when it is on a network, or when somebody
// copied its identity.
func (a *Agent) isElsewhere(ctx context.Context, device *v1alpha1.NodeDevice) (bool, error) {
	if device.Status.Node == "" || device.Status.Node == a.node {
		return false, nil
	}
	if c := meta.FindStatusCondition(device.Status.Conditions, v1alpha1.ConditionHealthy); c != nil && c.Reason == v1alpha1.ReasonAbsent {
		return false, nil
	}
	var other corev1.Node
	err := a.live.Get(ctx, client.ObjectKey{Name: device.Status.Node}, &other)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read node %s, which had drive %s last: %w", device.Status.Node, device.Name, err)
	}
	for _, c := range other.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, nil
		}
	}
	return false, nil
}

// describe writes what is seen of a drive into its NodeDevice.
func (a *Agent) describe(ctx context.Context, device *v1alpha1.NodeDevice, seen *Seen) {
	d := &seen.Drive
	if device.Labels == nil {
		device.Labels = map[string]string{}
	}
	device.Labels[v1alpha1.LabelNode] = a.node
	size := resource.NewQuantity(d.Bytes, resource.BinarySI)
	if device.Status.Size != nil && device.Status.Size.Cmp(*size) == 0 {
		size = device.Status.Size
	}
	device.Status = v1alpha1.NodeDeviceStatus{
		Conditions: device.Status.Conditions, ObservedGeneration: device.Generation,
		Node: a.node, Identity: d.Identity, Kind: d.Kind, KernelName: d.KernelName, Model: d.Model, Serial: d.Serial, Firmware: d.Firmware,
		Size: size, NUMANode: d.NUMANode, PCIAddress: d.PCIAddress, Driver: d.Driver,
	}
	report := func(c status.Condition) { a.reporter.Report(ctx, device, &device.Status.Conditions, c) }
	if ill := d.Health(); ill != nil {
		report(status.Of(v1alpha1.ConditionHealthy, false, ill.Reason, ill.Message))
	} else {
		report(status.Of(v1alpha1.ConditionHealthy, true, v1alpha1.ReasonNothingFound, "nothing is known to be wrong with the drive"))
	}
	report(ready(seen))
}

// ready says whether an engine may have a drive.
func ready(seen *Seen) status.Condition {
	if len(seen.Obstacles) > 0 {
		texts := make([]string, 0, len(seen.Obstacles))
		for _, o := range seen.Obstacles {
			texts = append(texts, o.Message)
		}
		return status.Of(v1alpha1.ConditionReady, false, seen.Obstacles[0].Reason, strings.Join(texts, "; "))
	}
	if at := seen.Assignment; at != nil {
		return status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonAssigned,
			fmt.Sprintf("for target %d of rank %d of StorageCluster %s/%s", at.Target, at.Rank, at.Namespace, at.Cluster))
	}
	return status.Of(v1alpha1.ConditionReady, true, v1alpha1.ReasonEligible, "blank: an engine may have it")
}

// miss says of a drive that the node does not have it any more.
func (a *Agent) miss(ctx context.Context, device *v1alpha1.NodeDevice) error {
	if device.Status.Node != a.node {
		return nil // another node has it
	}
	before := device.DeepCopy()
	device.Status.ObservedGeneration = device.Generation
	message := fmt.Sprintf("node %s does not have it any more: put the drive back, or in another node", a.node)
	for _, kind := range []string{v1alpha1.ConditionHealthy, v1alpha1.ConditionReady} {
		a.reporter.Report(ctx, device, &device.Status.Conditions, status.Of(kind, false, v1alpha1.ReasonAbsent, message))
	}
	return a.write(ctx, device, before)
}

// write patches what is new. It fails when somebody else has written in between: the next look sees what that was.
func (a *Agent) write(ctx context.Context, device, before *v1alpha1.NodeDevice) error {
	labelled := before.DeepCopy()
	if !equality.Semantic.DeepEqual(device.Labels, before.Labels) {
		labelled.Labels = device.Labels
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := a.client.Patch(ctx, labelled, patch, client.FieldOwner(fieldOwner)); err != nil {
			return fmt.Errorf("label NodeDevice %s: %w", device.Name, err)
		}
	}
	if equality.Semantic.DeepEqual(device.Status, before.Status) {
		return nil
	}
	described := labelled.DeepCopy()
	described.Status = device.Status
	patch := client.MergeFromWithOptions(labelled, client.MergeFromWithOptimisticLock{})
	if err := a.client.Status().Patch(ctx, described, patch, client.FieldOwner(fieldOwner)); err != nil {
		return fmt.Errorf("write the status of NodeDevice %s: %w", device.Name, err)
	}
	return nil
}
