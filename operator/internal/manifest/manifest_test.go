package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"weir.dev/weir/operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// cluster is a StorageCluster as the API server would complete it.
func cluster() *v1alpha1.StorageCluster {
	return &v1alpha1.StorageCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "weir", Namespace: "storage", UID: "0d1e"},
		Spec: v1alpha1.StorageClusterSpec{
			Engines: v1alpha1.EnginesSpec{
				Replicas: 2, TargetsPerEngine: 2, Spread: v1alpha1.SpreadRequired, LogLevel: "info",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
			},
			Storage: v1alpha1.StorageSpec{
				Size: resource.MustParse("16Gi"), HostPath: &v1alpha1.HostPathStorage{Path: "/var/lib/weir-data"},
			},
			Fabric:         v1alpha1.FabricSpec{Provider: "tcp"},
			Ports:          v1alpha1.PortsSpec{Fabric: 10100, Management: 10001, Metrics: 10002},
			DeletionPolicy: v1alpha1.DeletionRetain,
		},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); if the change is meant, run the test with -update:\n%s", path, diff)
	}
}

func TestGoldenFiles(t *testing.T) {
	c := cluster()
	golden(t, "engine.toml", EngineConfig(c))
	attach, err := AttachFile(c, "")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "client.json", string(attach))
	set, err := StatefulSet(Complete(c, "weir/engine:1", "weir-engine.json"), 1, "node-b", "fingerprint")
	if err != nil {
		t.Fatal(err)
	}
	for name, obj := range map[string]any{
		"statefulset.yaml": set, "erase-job.yaml": EraseJob(Complete(c, "weir/engine:1", ""), 1, "node-b"), "network-policy.yaml": NetworkPolicy(c, "weir-system"),
	} {
		text, err := yaml.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, string(text))
	}
}

func TestTargetBytes(t *testing.T) {
	tests := map[string]struct {
		size    string
		targets int32
		want    int64
	}{
		"shared evenly":                   {"16Gi", 4, 4 << 30},
		"rounded down to whole mebibytes": {"1000M", 3, 317 << 20},
		"less than a mebibyte is none":    {"1Mi", 2, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster()
			c.Spec.Storage.Size, c.Spec.Engines.TargetsPerEngine = resource.MustParse(tc.size), tc.targets
			if got := TargetBytes(c); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestClaimsFollowTheDeletionPolicy(t *testing.T) {
	c := cluster()
	c.Spec.Storage = v1alpha1.StorageSpec{
		Size: resource.MustParse("16Gi"), VolumeClaimTemplate: &v1alpha1.VolumeClaimStorage{StorageClassName: new("fast")},
	}
	for policy, want := range map[v1alpha1.DeletionPolicy]string{v1alpha1.DeletionRetain: "Retain", v1alpha1.DeletionDelete: "Delete"} {
		c.Spec.DeletionPolicy = policy
		set, err := StatefulSet(c, 0, "", "")
		if err != nil {
			t.Fatal(err)
		}
		claim := set.Spec.VolumeClaimTemplates[0].Spec
		if string(set.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted) != want || *claim.StorageClassName != "fast" {
			t.Errorf("%s: claims are kept by %+v", policy, set.Spec.PersistentVolumeClaimRetentionPolicy)
		}
		pod := set.Spec.Template.Spec
		if len(pod.InitContainers) != 0 || pod.Affinity.NodeAffinity != nil {
			t.Errorf("%s: an engine on a claim is prepared for, or pinned to, a node", policy)
		}
	}
}

func TestTemplateChangesOnlyWithWhatTheEngineReads(t *testing.T) {
	template := func(change func(*v1alpha1.StorageCluster), image, fingerprint string) string {
		c := cluster()
		change(c)
		set, err := StatefulSet(Complete(c, image, ""), 0, "node-a", fingerprint)
		if err != nil {
			t.Fatal(err)
		}
		return set.Annotations[AnnotationTemplate]
	}
	same := func(*v1alpha1.StorageCluster) {}
	base := template(same, "i", "f")
	tests := map[string]struct {
		got     string
		changed bool
	}{
		"the same again":    {template(same, "i", "f"), false},
		"another policy":    {template(func(c *v1alpha1.StorageCluster) { c.Spec.DeletionPolicy = v1alpha1.DeletionDelete }, "i", "f"), false},
		"another image":     {template(same, "j", "f"), true},
		"other credentials": {template(same, "i", "g"), true},
	}
	for name, tc := range tests {
		if (tc.got != base) != tc.changed {
			t.Errorf("%s: template %s, was %s", name, tc.got, base)
		}
	}
}

func TestNamesFit(t *testing.T) {
	longest := strings.Repeat("c", 40)
	// A StatefulSet's name plus "-" and a hash of ten characters is the value of a label: at most 63 characters.
	if name := EngineName(longest, 127); len(name) > 52 {
		t.Errorf("%s has %d characters", name, len(name))
	}
}

func TestShmSharesTheNodesMemory(t *testing.T) {
	c := cluster()
	c.Spec.Fabric.Provider, c.Spec.Engines.Replicas = "shm", 1
	set, err := StatefulSet(c, 0, "node-a", "")
	if err != nil {
		t.Fatal(err)
	}
	mounts := set.Spec.Template.Spec.Containers[0].VolumeMounts
	if last := mounts[len(mounts)-1]; last.MountPath != "/dev/shm" {
		t.Errorf("last mount: %+v", last)
	}
}

func TestCompleteFillsInWhatTheSpecLeavesOpen(t *testing.T) {
	own := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	tests := map[string]struct {
		image, profile         string
		specImage              string
		specProfile            *corev1.SeccompProfile
		wantImage, wantProfile string
	}{
		"the operator's image and profile":              {"i", "p.json", "", nil, "i", "Localhost p.json"},
		"without a profile the runtime's":               {"i", "", "", nil, "i", "RuntimeDefault "},
		"what the spec says goes before the operator's": {"i", "p.json", "mine", own, "mine", "Unconfined "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := cluster()
			c.Spec.Image, c.Spec.Engines.SeccompProfile = tc.specImage, tc.specProfile
			got := Complete(c, tc.image, tc.profile)
			profile := got.Spec.Engines.SeccompProfile
			if got.Spec.Image != tc.wantImage || string(profile.Type)+" "+ptr.Deref(profile.LocalhostProfile, "") != tc.wantProfile {
				t.Errorf("image %s, profile %v", got.Spec.Image, profile)
			}
			if c.Spec.Image != tc.specImage {
				t.Error("the cluster itself was changed")
			}
		})
	}
}

func TestEnginesServeABlockOfVNIsWhereTheProviderHasSuch(t *testing.T) {
	for name, tc := range map[string]struct {
		fabric v1alpha1.FabricSpec
		want   bool
	}{
		"cxi with a block":    {v1alpha1.FabricSpec{Provider: "cxi", VNIBlock: &v1alpha1.VNIBlock{First: 1024, Last: 1151}}, true},
		"cxi without":         {v1alpha1.FabricSpec{Provider: "cxi"}, false},
		"tcp, which has none": {v1alpha1.FabricSpec{Provider: "tcp", VNIBlock: &v1alpha1.VNIBlock{First: 1024, Last: 1151}}, false},
	} {
		c := cluster()
		c.Spec.Fabric = tc.fabric
		if got := strings.Contains(StartConfig(c), "fabric_auth_key = \"0:1024:1151\"\n"); got != tc.want {
			t.Errorf("%s: the block is in the configuration: %t", name, got)
		}
	}
}

func TestManagementIsOpenToTheNamespacesOfTheReleaseOnly(t *testing.T) {
	rule := NetworkPolicy(cluster(), "weir-system", "weir-agents").Spec.Ingress[1]
	if port := rule.Ports[0].Port.IntVal; port != cluster().Spec.Ports.Management {
		t.Fatalf("the rule is about port %d", port)
	}
	var namespaces []string
	for _, peer := range rule.From {
		if peer.NamespaceSelector == nil {
			namespaces = append(namespaces, "its own")
			continue
		}
		namespaces = append(namespaces, peer.NamespaceSelector.MatchLabels[corev1.LabelMetadataName])
	}
	if diff := cmp.Diff([]string{"its own", "weir-system", "weir-agents"}, namespaces); diff != "" {
		t.Error(diff)
	}
}
