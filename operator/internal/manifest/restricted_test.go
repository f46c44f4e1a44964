package manifest

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"weir.dev/weir/charts/podsecurity"
	"weir.dev/weir/operator/api/v1alpha1"
)

// onNode is what a namespace of the Pod Security level "restricted" has against engines that keep something in a directory of their node:
// no container may mount one, and the kubelet makes it for root, so that an init container with CHOWN gives it to the engine's user.
var onNode = []string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0", "unrestricted capabilities"}

// TestPodsAreRestrictedButForDirectoriesOfTheNode names exactly the rules that each pod of the operator breaks.
// docs/explanation/security.md says the same.
func TestPodsAreRestrictedButForDirectoriesOfTheNode(t *testing.T) {
	size := resource.MustParse("16Gi")
	claims := v1alpha1.StorageSpec{Size: size, VolumeClaimTemplate: &v1alpha1.VolumeClaimStorage{}}
	engine := func(storage v1alpha1.StorageSpec, provider string) corev1.PodTemplateSpec {
		c := cluster()
		c.Spec.Storage, c.Spec.Fabric.Provider = storage, provider
		set, err := StatefulSet(Complete(c, "weir/engine:1", "weir-engine.json"), 0, "node-a", "")
		if err != nil {
			t.Fatal(err)
		}
		return set.Spec.Template
	}
	tests := map[string]struct {
		pod  corev1.PodTemplateSpec
		want []string
	}{
		"an engine on a claim":     {engine(claims, "tcp"), nil},
		"an engine in a directory": {engine(cluster().Spec.Storage, "tcp"), onNode},
		"an engine on drives of the device plugin": {
			engine(v1alpha1.StorageSpec{Devices: &v1alpha1.DeviceStorage{Count: 2, Path: "/var/lib/weir/engines"}}, "tcp"), onNode,
		},
		"an engine on drives of a claim": {
			engine(v1alpha1.StorageSpec{Devices: &v1alpha1.DeviceStorage{Count: 2, DeviceClass: "nvme.weir.dev", Path: "/var/lib/weir/engines"}}, "tcp"), onNode,
		},
		// It shares memory with clients in other pods of the node.
		"an engine on shm": {engine(claims, "shm"), []string{"restricted volume types"}},
		// The directory that it removes is in one of root's.
		"the erasure of a directory": {
			EraseJob(Complete(cluster(), "weir/engine:1", ""), 0, "node-a").Spec.Template,
			[]string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0"},
		},
	}
	for name, tc := range tests {
		breaches, err := podsecurity.Breaches(&tc.pod)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, slices.Sorted(maps.Keys(breaches))); diff != "" {
			t.Errorf("%s (-excepted +broken): %s\nsays Pod Security: %v", name, diff, breaches)
		}
	}
}
