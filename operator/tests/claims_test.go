package tests

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	clocktesting "k8s.io/utils/clock/testing"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
	"weir.dev/weir/operator/internal/resourceclaim"
)

func TestEnginesClaimTheirDrives(t *testing.T) {
	t.Parallel()
	i := install(t, 1)
	a := newAgent(t, i.clock, i.machines.node("a"))
	a.insert(i.namespace+"-1", blank)
	a.insert(i.namespace+"-2", blank)
	a.scan(t)
	i.apply(strings.ReplaceAll(i.machines.onDrives(1), "{count: 2}", "{count: 2, deviceClass: nvme.weir.dev}"))
	var cluster v1alpha1.StorageCluster
	i.ready(&cluster, "weir")
	var template resourceapi.ResourceClaimTemplate
	if err := i.get(&template, "weir-engine-0-drives"); err != nil {
		t.Fatal(err)
	}
	requests := template.Spec.Spec.Devices.Requests
	want := fmt.Sprintf(`device.driver == "nvme.weir.dev" && device.attributes["nvme.weir.dev"].engine == %q && device.attributes["nvme.weir.dev"].target == 1`,
		drive.Engine(i.namespace, "weir", 0))
	if len(requests) != 2 || requests[1].Name != "target-1" || requests[1].Exactly.DeviceClassName != "nvme.weir.dev" ||
		requests[1].Exactly.Selectors[0].CEL.Expression != want || !metav1.IsControlledBy(&template, &cluster) {
		t.Errorf("%+v", template)
	}
	var set appsv1.StatefulSet
	if err := i.get(&set, "weir-engine-0"); err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	if len(spec.ResourceClaims) != 1 || *spec.ResourceClaims[0].ResourceClaimTemplateName != template.Name ||
		!slices.Equal(spec.Containers[0].Resources.Claims, []corev1.ResourceClaim{{Name: "drives"}}) || len(spec.Containers[0].Resources.Limits) != 0 {
		t.Errorf("%+v", spec)
	}
}

func TestDrivesAreOfferedToTheScheduler(t *testing.T) {
	t.Parallel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "drives-"}}
	if err := admin.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	i := &installation{t: t}
	folder, err := os.MkdirTemp("", "dra") //nolint:usetesting // paths of sockets have to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	clients, err := kubernetes.NewForConfig(withRole(t, node.Name, "weir-drives-claims"))
	if err != nil {
		t.Fatal(err)
	}
	driver := resourceclaim.New(node.Name, folder, nil)
	helper, err := kubeletplugin.Start(t.Context(), driver, kubeletplugin.DriverName(drive.Driver), kubeletplugin.KubeClient(clients),
		kubeletplugin.NodeName(node.Name), kubeletplugin.PluginDataDirectoryPath(folder), kubeletplugin.RegistrarDirectoryPath(folder))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	offer := driver.Offer(helper)
	offered := func() (names []string, err error) {
		var list resourceapi.ResourceSliceList
		if err := admin.List(t.Context(), &list); err != nil {
			return nil, err
		}
		for _, slice := range list.Items {
			if slice.Spec.NodeName != nil && *slice.Spec.NodeName == node.Name {
				for _, device := range slice.Spec.Devices {
					names = append(names, device.Name)
				}
			}
		}
		return names, nil
	}
	a := newAgent(t, clocktesting.NewFakePassiveClock(time.Now()), node.Name)
	name := a.insert(node.Name+"-offered", blank)
	seen := a.scan(t)
	seen[0].Assignment = &v1alpha1.DeviceAssignment{Namespace: "storage", Cluster: "weir", Target: 3}
	offer(t.Context(), seen)
	i.eventually("the drive is in a ResourceSlice", func() string {
		names, err := offered()
		if err != nil || !slices.Equal(names, []string{name}) {
			return fmt.Sprintf("%v %v", names, err)
		}
		return ""
	})
	seen[0].Obstacles = []drive.Finding{{Reason: v1alpha1.ReasonControllerDown}}
	offer(t.Context(), seen)
	i.eventually("a drive that fails is in none", func() string {
		names, err := offered()
		if err != nil || len(names) != 0 {
			return fmt.Sprintf("%v %v", names, err)
		}
		return ""
	})
}
