package node

import (
	"fmt"

	mountv1 "weir.dev/weir/client/fuse/proto/mount/v1"
)

// Keys of the Secret that a StorageClass, or a PersistentVolume, names for the staging of its volumes: those of the Secrets that the
// operator writes for tenants and for clients of a cluster.
const (
	secretAttach    = "client.json"
	secretTenantKey = "tenant.key"
	secretSystemKey = "system.key"
)

// credentials are what a volume is mounted with, from the Secret that came with the request; nil without one: the mount daemon has
// attach files of its own.
func credentials(secrets map[string]string) (*mountv1.MountCredentials, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	attach, key := secrets[secretAttach], secrets[secretTenantKey]
	if key == "" {
		key = secrets[secretSystemKey]
	}
	if attach == "" || key == "" {
		return nil, fmt.Errorf(
			"the Secret in csi.storage.k8s.io/node-stage-secret-name must have the keys %s and %s: name the Secret weir-tenant-<cluster> that the operator writes into the namespaces of a Tenant",
			secretAttach, secretTenantKey)
	}
	return &mountv1.MountCredentials{Attach: []byte(attach), Key: []byte(key)}, nil
}
