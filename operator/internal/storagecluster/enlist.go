package storagecluster

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// enlist writes what clients attach with into the Secret of all clusters, which CSI controller and mount daemon mount: so they learn
// of a cluster while they run. Each cluster owns its keys there and leaves those of others as they are. It tells whether any
// has changed.
func (r *Reconciler) enlist(ctx context.Context, cluster *v1alpha1.StorageCluster, data map[string][]byte) (changed bool, err error) {
	prefix := manifest.ClientPrefix(cluster.Name)
	attach, err := manifest.AttachFile(cluster, prefix)
	if err != nil {
		return false, err
	}
	own := map[string][]byte{prefix + manifest.KeyClient: attach}
	for _, key := range []string{manifest.KeySystemKey, manifest.KeyCA, manifest.KeyCert, manifest.KeyPrivate} {
		own[prefix+key] = data[key]
	}
	for _, namespace := range r.config.attaching() {
		existing, err := r.enlisted(ctx, namespace)
		if err != nil {
			return false, err
		}
		outdated := existing == nil
		for key, value := range own {
			outdated = outdated || !bytes.Equal(existing.Data[key], value)
		}
		if !outdated {
			continue
		}
		if err := r.applyEnlisted(ctx, cluster, namespace, own); err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// delist takes a cluster's keys out of the Secret of all clusters, which goes with the last of them.
func (r *Reconciler) delist(ctx context.Context, cluster *v1alpha1.StorageCluster) error {
	for _, namespace := range r.config.attaching() {
		if err := r.delistIn(ctx, cluster, namespace); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) delistIn(ctx context.Context, cluster *v1alpha1.StorageCluster, namespace string) error {
	existing, err := r.enlisted(ctx, namespace)
	if err != nil || existing == nil {
		return err
	}
	if err := r.applyEnlisted(ctx, cluster, namespace, nil); err != nil {
		return err
	}
	if existing, err = r.enlisted(ctx, namespace); err != nil || existing == nil || len(existing.Data) > 0 {
		return err
	}
	// Unless another cluster has written to it since.
	err = r.client.Delete(ctx, existing, client.Preconditions{UID: &existing.UID, ResourceVersion: &existing.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Secret %s/%s: %w", existing.Namespace, existing.Name, err)
	}
	return nil
}

// enlisted is the Secret of all clusters in a namespace; nil if there is none.
func (r *Reconciler) enlisted(ctx context.Context, namespace string) (*corev1.Secret, error) {
	name := types.NamespacedName{Namespace: namespace, Name: manifest.ClientsName}
	var existing corev1.Secret
	switch err := r.live.Get(ctx, name, &existing); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	case existing.Labels[manifest.LabelManagedBy] != manifest.ManagedBy:
		return nil, fmt.Errorf("secret %s is not the operator's, which leaves it as it is: delete it, or give it the label %s=%s",
			name, manifest.LabelManagedBy, manifest.ManagedBy)
	default:
		return &existing, nil
	}
}

func (r *Reconciler) applyEnlisted(ctx context.Context, cluster *v1alpha1.StorageCluster, namespace string, own map[string][]byte) error {
	secret := corev1apply.Secret(manifest.ClientsName, namespace).
		WithLabels(map[string]string{manifest.LabelManagedBy: manifest.ManagedBy}).WithData(own)
	owner := client.FieldOwner("weir-operator/" + cluster.Namespace + "/" + cluster.Name)
	if err := r.client.Apply(ctx, secret, owner, client.ForceOwnership); err != nil {
		return fmt.Errorf("write keys of StorageCluster %s/%s into Secret %s/%s: %w",
			cluster.Namespace, cluster.Name, namespace, manifest.ClientsName, err)
	}
	return nil
}
