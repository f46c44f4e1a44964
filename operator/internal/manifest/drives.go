package manifest

import (
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
)

// drivesClaim is the name of the claim of drives in an engine's pod.
const drivesClaim = "drives"

// DrivesName names the template of the claim by which the engine of a rank gets its drives.
func DrivesName(cluster string, rank int32) string { return EngineName(cluster, rank) + "-drives" }

// DrivesTemplate is the template of the claim by which the engine of a rank gets its drives: for each target the one that is assigned
// to it. The claim goes with the pod; which drive is whose stands in the NodeDevices.
func DrivesTemplate(c *v1alpha1.StorageCluster, rank int32) *resourceapi.ResourceClaimTemplate {
	devices := c.Spec.Storage.Devices
	requests := make([]resourceapi.DeviceRequest, 0, devices.Count)
	for target := range devices.Count {
		requests = append(requests, resourceapi.DeviceRequest{
			Name: fmt.Sprintf("target-%d", target),
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: devices.DeviceClass,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           1,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf(
					"device.driver == %[1]q && device.attributes[%[1]q].%[2]s == %[3]q && device.attributes[%[1]q].%[4]s == %[5]d",
					drive.Driver, drive.AttributeEngine, drive.Engine(c.Namespace, c.Name, rank), drive.AttributeTarget, target,
				)}}},
			},
		})
	}
	meta := Meta(c, DrivesName(c.Name, rank))
	meta.Labels = engineLabels(c.Name, rank)
	return &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: meta,
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}},
	}
}
