package management

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Abandoned says why engines that don't answer never will: their StorageCluster, or the whole namespace, is gone. It
// returns "" while there is hope. live reads past the cache: what is given up is never asked for again.
func Abandoned(ctx context.Context, live client.Reader, cluster types.NamespacedName) (string, error) {
	err := live.Get(ctx, cluster, &v1alpha1.StorageCluster{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("StorageCluster %s is gone", cluster.Name), nil
	}
	if err != nil {
		return "", fmt.Errorf("read StorageCluster %s: %w", cluster, err)
	}
	var namespace corev1.Namespace
	if err := live.Get(ctx, types.NamespacedName{Name: cluster.Namespace}, &namespace); err != nil {
		return "", fmt.Errorf("read namespace %s: %w", cluster.Namespace, err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("namespace %s is going and took the engines with it", cluster.Namespace), nil
	}
	return "", nil
}
