package tests

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/assignment"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/inventory"
)

// slots are what is in a node for drives, instead of a kernel.
type slots struct{ drives []drive.Drive }

func (s *slots) Find() ([]drive.Drive, error) {
	found := slices.Clone(s.drives)
	for i := range found {
		found[i].Content = drive.Content{}
	}
	return found, nil
}

func (s *slots) Look(d *drive.Drive, _ bool) {
	for _, known := range s.drives {
		if known.KernelName == d.KernelName {
			d.Content = known.Content
		}
	}
}

// notes are the events of an agent.
type notes struct {
	mu   sync.Mutex
	list []string
}

func (n *notes) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := ""
	if obj, ok := regarding.(client.Object); ok {
		name = obj.GetName()
	}
	n.list = append(n.list, fmt.Sprintf("%s %s: %s", name, reason, fmt.Sprintf(note, args...)))
}

// agent of a node's drives, with the role that the chart gives it.
type agent struct {
	*inventory.Agent
	slots *slots
	notes *notes
}

// withRole is a connection of somebody who has a role of the chart for drives, and no other.
func withRole(t *testing.T, node, role string) *rest.Config {
	t.Helper()
	account := rbacv1.Subject{Kind: rbacv1.UserKind, Name: role + "-" + node, APIGroup: rbacv1.GroupName}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name}, Subjects: []rbacv1.Subject{account},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: rolePrefix + role},
	}
	if err := admin.Create(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(adminConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: account.Name, Groups: []string{"system:authenticated"}}
	return config
}

func newAgent(t *testing.T, clock *clocktesting.FakePassiveClock, node string) *agent {
	t.Helper()
	c, err := client.New(withRole(t, node, "weir-drives"), client.Options{Scheme: admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{slots: &slots{}, notes: &notes{}}
	a.Agent = inventory.New(c, c, a.notes, clock, node, a.slots)
	return a
}

// insert puts a drive with some content into the node, and returns the name of its NodeDevice.
func (a *agent) insert(identity string, content drive.Content) string {
	identity = "loop." + identity
	a.slots.drives = append(a.slots.drives, drive.Drive{
		Identity: identity, KernelName: fmt.Sprintf("loop%d", len(a.slots.drives)), Kind: v1alpha1.DriveLoop, Model: "test",
		Bytes: 8 << 30, Major: 7, Content: content,
	})
	return drive.Name(identity)
}

func (a *agent) scan(t *testing.T) []inventory.Seen {
	t.Helper()
	seen, err := a.Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

var (
	blank = drive.Content{Kind: drive.ContentBlank}
	ext4  = drive.Content{Kind: drive.ContentForeign, Signature: "an ext4 file system"}
)

func assigned(t *testing.T, name string) *v1alpha1.DeviceAssignment {
	t.Helper()
	var device v1alpha1.NodeDevice
	if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, &device); err != nil {
		t.Fatal(err)
	}
	return device.Spec.Assignment
}

// onDrives is the manifest of a cluster whose engines have two drives each.
func (m *machines) onDrives(replicas int) string {
	return strings.ReplaceAll(m.cluster(replicas, ""), "hostPath: {path: /var/lib/weir-data}", "devices: {count: 2}")
}

func TestEnginesGetDrivesAndFailedOnesAreReplaced(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	node := i.machines.node("a")
	a := newAgent(t, i.clock, node)
	i.apply(i.machines.onDrives(1))
	var cluster v1alpha1.StorageCluster
	i.condition(&cluster, "weir", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTooFewNodes, "2 drives needed", "no NodeDevice")
	foreign := a.insert(i.namespace+"-foreign", ext4)
	first, second := a.insert(i.namespace+"-1", blank), a.insert(i.namespace+"-2", blank)
	a.scan(t)
	i.ready(&cluster, "weir")
	targets := map[int32]string{}
	for _, name := range []string{first, second} {
		at := assigned(t, name)
		if at == nil || at.Namespace != i.namespace || at.Cluster != "weir" || at.Rank != 0 {
			t.Fatalf("%s is assigned to %+v", name, at)
		}
		targets[at.Target] = name
	}
	if at := assigned(t, foreign); at != nil || len(targets) != 2 {
		t.Errorf("the foreign drive is assigned to %+v, the others to %v", at, targets)
	}
	var set appsv1.StatefulSet
	if err := i.get(&set, "weir-engine-0"); err != nil {
		t.Fatal(err)
	}
	container := set.Spec.Template.Spec.Containers[0]
	count := container.Resources.Limits[corev1.ResourceName(drive.Resource(i.namespace, "weir", 0))]
	hasPaths := slices.Contains(container.Env, corev1.EnvVar{Name: "WEIR_DEVICES", Value: "/dev/weir/target-0,/dev/weir/target-1"})
	if count.Value() != 2 || !hasPaths {
		t.Errorf("the engine asks for %v, and has %v", container.Resources.Limits, container.Env)
	}
	a.scan(t)
	var device v1alpha1.NodeDevice
	i.condition(&device, first, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAssigned, "rank 0", i.namespace+"/weir")
	i.condition(&device, foreign, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonForeignSignature, "ext4")

	// The drive of target 0 is pulled out.
	pulled := slices.IndexFunc(a.slots.drives, func(d drive.Drive) bool { return drive.Name(d.Identity) == targets[0] })
	gone := a.slots.drives[pulled]
	a.slots.drives = slices.Delete(a.slots.drives, pulled, pulled+1)
	a.scan(t)
	i.condition(&device, targets[0], v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonAbsent)
	i.condition(&cluster, "weir", v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonDriveFailed, targets[0])
	spare := a.insert(i.namespace+"-spare", blank)
	a.slots.drives[len(a.slots.drives)-1].KernelName = "loop9"
	a.scan(t)
	if at := assigned(t, spare); at != nil {
		t.Errorf("a drive that is away for a moment is replaced: %+v", at)
	}
	i.clock.SetTime(i.clock.Now().Add(assignment.Patience))
	i.eventually("the spare drive is taken", func() string {
		if at := assigned(t, spare); at == nil || at.Target != 0 || assigned(t, targets[0]) != nil {
			return fmt.Sprintf("%+v, %+v", at, assigned(t, targets[0]))
		}
		return ""
	})
	i.event("weir", v1alpha1.ReasonDriveReplaced, targets[0])
	i.eventually("the engine is restarted with the other drive", func() string {
		var now appsv1.StatefulSet
		if err := i.get(&now, "weir-engine-0"); err != nil || now.Spec.Template.Annotations["storage.weir.dev/configuration"] == set.Spec.Template.Annotations["storage.weir.dev/configuration"] {
			return fmt.Sprintf("the same template, %v", err)
		}
		return ""
	})
	i.condition(&cluster, "weir", v1alpha1.ConditionDegraded, metav1.ConditionFalse, v1alpha1.ReasonSettled)

	// The drive comes back with what it had.
	gone.Content = drive.Content{Kind: drive.ContentStore, Store: &drive.Store{System: "weir"}}
	a.slots.drives = append(a.slots.drives, gone)
	a.scan(t)
	i.condition(&device, targets[0], v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonHoldsStore, "target 0 of rank 0 of system weir")
}

func TestAForeignDriveIsGivenToNobodyEvenIfItIsNamed(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drives-"}}
	if err := admin.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	a := newAgent(t, clocktesting.NewFakePassiveClock(time.Now()), node.Name)
	foreign, own := a.insert(node.Name+"-foreign", ext4), a.insert(node.Name+"-own", blank)
	seen := a.scan(t)
	if len(seen) != 2 || len(seen[0].Obstacles) != 1 || len(seen[1].Obstacles) != 0 {
		t.Fatalf("%+v", seen)
	}
	if _, err := a.Take(t.Context(), own); err == nil || !strings.Contains(err.Error(), "assigned to no engine") {
		t.Errorf("a drive of nobody: %v", err)
	}
	for _, name := range []string{foreign, own} {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"assignment": {"namespace": "x", "cluster": "weir", "rank": 0, "target": 1}}}`))
		if err := admin.Patch(t.Context(), &v1alpha1.NodeDevice{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Take(t.Context(), foreign); err == nil || !strings.Contains(err.Error(), "ForeignSignature") {
		t.Errorf("the foreign drive: %v", err)
	}
	taken, err := a.Take(t.Context(), own)
	if err != nil || taken.Assignment.Target != 1 {
		t.Errorf("its own drive: %+v, %v", taken, err)
	}
	other := client.RawPatch("application/merge-patch+json", []byte(`{"spec": {"assignment": {"rank": 5}}}`))
	checkRefusal(t, admin.Patch(t.Context(), &v1alpha1.NodeDevice{ObjectMeta: metav1.ObjectMeta{Name: own}}, other), "remove it before the drive is given to another target")
}

func TestADriveInTwoNodesIsOneNodesOnly(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakePassiveClock(time.Now())
	var agents []*agent
	for range 2 {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drives-"}}
		if err := admin.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if err := admin.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		agents = append(agents, newAgent(t, clock, node.Name))
	}
	shared := fmt.Sprintf("shared-%d", time.Now().UnixNano())
	name := agents[0].insert(shared, blank)
	agents[1].insert(shared, blank)
	if seen := agents[0].scan(t); len(seen) != 1 {
		t.Errorf("the first node: %+v", seen)
	}
	if seen := agents[1].scan(t); len(seen) != 0 || len(agents[1].notes.list) != 1 || !strings.Contains(agents[1].notes.list[0], v1alpha1.ReasonSeenElsewhere) {
		t.Errorf("the second node: %+v, %v", seen, agents[1].notes.list)
	}
	if _, err := agents[1].Take(t.Context(), name); err == nil {
		t.Error("the second node gives the drive away")
	}
	// The first node loses it: it was moved.
	agents[0].slots.drives = nil
	agents[0].scan(t)
	if seen := agents[1].scan(t); len(seen) != 1 {
		t.Errorf("the second node, alone: %+v", seen)
	}
	if seen := agents[0].scan(t); len(seen) != 0 {
		t.Errorf("the first node, without it: %+v", seen)
	}
	var device v1alpha1.NodeDevice
	if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, &device); err != nil || !meta.IsStatusConditionTrue(device.Status.Conditions, v1alpha1.ConditionHealthy) {
		t.Errorf("%+v %v", device.Status, err)
	}
}
