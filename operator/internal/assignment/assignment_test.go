package assignment

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"weir.dev/weir/operator/api/v1alpha1"
)

var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

type change func(*v1alpha1.NodeDevice)

func device(name string, changes ...change) v1alpha1.NodeDevice {
	d := v1alpha1.NodeDevice{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"tier": "fast"}}}
	size := resource.MustParse("4Gi")
	d.Status.Node, d.Status.Size = "n", &size
	set(&d, v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonNothingFound)
	set(&d, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonEligible)
	for _, c := range changes {
		c(&d)
	}
	return d
}

func set(d *v1alpha1.NodeDevice, kind string, status metav1.ConditionStatus, reason string) {
	condition := metav1.Condition{Type: kind, Status: status, Reason: reason, Message: reason, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}
	for i := range d.Status.Conditions {
		if d.Status.Conditions[i].Type == kind {
			d.Status.Conditions[i] = condition
			return
		}
	}
	d.Status.Conditions = append(d.Status.Conditions, condition)
}

func sized(size string) change {
	return func(d *v1alpha1.NodeDevice) { *d.Status.Size = resource.MustParse(size) }
}

func of(cluster string, rank, target int32) change {
	return func(d *v1alpha1.NodeDevice) {
		d.Spec.Assignment = &v1alpha1.DeviceAssignment{Namespace: "storage", Cluster: cluster, Rank: rank, Target: target}
	}
}

func on(node string) change { return func(d *v1alpha1.NodeDevice) { d.Status.Node = node } }

func rejected(reason string) change {
	return func(d *v1alpha1.NodeDevice) { set(d, v1alpha1.ConditionReady, metav1.ConditionFalse, reason) }
}

func failed(reason string, ago time.Duration) change {
	return func(d *v1alpha1.NodeDevice) {
		set(d, v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
		set(d, v1alpha1.ConditionHealthy, metav1.ConditionFalse, reason)
		for i := range d.Status.Conditions {
			d.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now.Add(-ago))
		}
	}
}

func want(count int32) Want {
	return Want{
		Namespace: "storage", Cluster: "weir", Count: count, MinBytes: 2 << 30, Selector: labels.SelectorFromSet(labels.Set{"tier": "fast"}),
		Nodes: map[int32]string{0: "n"},
	}
}

// gifts are the names of the drives that are given, by target.
func gifts(d Decision) string {
	var names []string
	for _, g := range d.Give {
		names = append(names, g.Device.Name)
	}
	return strings.Join(names, " ")
}

func TestEachTargetGetsAFittingDriveOfItsNode(t *testing.T) {
	devices := []v1alpha1.NodeDevice{
		device("a-elsewhere", on("m")), device("b-small", sized("1Gi")), device("c-large", sized("8Gi")), device("d-taken", of("other", 0, 0)),
		device("e-foreign", rejected(v1alpha1.ReasonForeignSignature)), device("f-slow", func(d *v1alpha1.NodeDevice) { d.Labels = nil }),
		device("g"), device("h"), device("i-ill", failed(v1alpha1.ReasonHealthWarning, 0)), {ObjectMeta: metav1.ObjectMeta{Name: "new"}},
	}
	d := Decide(want(2), devices, now)
	if gifts(d) != "g h" || d.Give[1].To != (v1alpha1.DeviceAssignment{Namespace: "storage", Cluster: "weir", Target: 1}) || len(d.Missing)+len(d.Remove) != 0 {
		t.Errorf("%+v", d)
	}
	d = Decide(want(4), devices, now)
	if gifts(d) != "g h c-large" {
		t.Errorf("%+v", d)
	}
	for _, part := range []string{"target 3", "1 TooSmall", "1 Assigned", "1 ForeignSignature", "1 not selected", "1 HealthWarning"} {
		if !strings.Contains(d.Missing[0], part) {
			t.Errorf("%q lacks %q", d.Missing[0], part)
		}
	}
	if d := Decide(want(1), nil, now); !strings.Contains(d.Missing[0], "no NodeDevice") {
		t.Errorf("%+v", d)
	}
	if why := want(4).Shortage("n", devices); !strings.Contains(why, "4 drives needed") {
		t.Error(why)
	}
	if why := want(3).Shortage("n", devices); why != "" {
		t.Error(why)
	}
}

func TestTwoEnginesOfANodeShareNoDrive(t *testing.T) {
	w := want(1)
	w.Nodes[1] = "n"
	if d := Decide(w, []v1alpha1.NodeDevice{device("a"), device("b")}, now); gifts(d) != "a b" || d.Give[1].To.Rank != 1 {
		t.Errorf("%+v", d)
	}
}

func TestATargetKeepsItsDrive(t *testing.T) {
	keeps := map[string]change{
		"well":              func(*v1alpha1.NodeDevice) {},
		"worn":              failed(v1alpha1.ReasonHealthWarning, 24*time.Hour),
		"foreign":           rejected(v1alpha1.ReasonForeignSignature),
		"in another node":   on("m"),
		"away for a moment": failed(v1alpha1.ReasonAbsent, time.Minute),
	}
	for name, state := range keeps {
		d := Decide(want(1), []v1alpha1.NodeDevice{device("free"), device("own", of("weir", 0, 0), state)}, now)
		if len(d.Give)+len(d.Remove)+len(d.Missing) != 0 || d.Have[Slot{}].Name != "own" {
			t.Errorf("%s: %+v", name, d)
		}
		waits := name == "away for a moment"
		if waits != (d.Recheck == Patience-time.Minute) || (waits || name == "in another node") != (len(d.Failed) == 1) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestAFailedDriveIsReplacedOnlyByAnother(t *testing.T) {
	for _, reason := range lost {
		broken := device("own", of("weir", 0, 0), failed(reason, Patience))
		d := Decide(want(1), []v1alpha1.NodeDevice{broken, device("free")}, now)
		if gifts(d) != "free" || len(d.Remove) != 1 || d.Remove[0].Device.Name != "own" || d.Have[Slot{}].Name != "free" || len(d.Failed) != 0 {
			t.Errorf("%s: %+v", reason, d)
		}
		d = Decide(want(1), []v1alpha1.NodeDevice{broken, device("far", on("m"))}, now)
		if len(d.Give)+len(d.Remove)+len(d.Missing) != 0 || len(d.Failed) != 1 {
			t.Errorf("%s, no other: %+v", reason, d)
		}
	}
}

func TestTwoDrivesOfOneTargetAreLeftToPeople(t *testing.T) {
	d := Decide(want(1), []v1alpha1.NodeDevice{device("a", of("weir", 0, 0)), device("b", of("weir", 0, 0)), device("free")}, now)
	if len(d.Give)+len(d.Remove)+len(d.Have) != 0 || !strings.Contains(d.Missing[0], "a and b") {
		t.Errorf("%+v", d)
	}
}
