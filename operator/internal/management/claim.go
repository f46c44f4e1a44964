package management

import (
	"fmt"

	"weir.dev/weir/csi/volume"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// OfClaim names the claim that a container was made for, with the words that lead to it; "" for none. container is what a query tells:
// listings have no attributes.
func OfClaim(container *managementv1.ContainerInfo) string {
	attributes := container.GetAttributes()
	if attributes[volume.AttributeClaimName] == "" {
		return ""
	}
	return fmt.Sprintf(" of PersistentVolumeClaim %s/%s", attributes[volume.AttributeClaimNamespace], attributes[volume.AttributeClaimName])
}
