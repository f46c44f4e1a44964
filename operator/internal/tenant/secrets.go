package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/engine/proto/keys"
	"weir.dev/weir/engine/proto/management/roles"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/certificate"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/pki"
	"weir.dev/weir/operator/internal/status"
)

const (
	// namespacesMax bounds the namespaces of a tenant, as status.namespaces does.
	namespacesMax = 1024
	// waiting is when to look again at a cluster that has no keys yet, and at a Secret that could not be written.
	waiting = 5 * time.Second
)

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// found is what a tenant's Secrets are for.
type found struct {
	// namespaces that are the tenant's, in order of their names.
	namespaces []string
	// taken are namespaces that an older Tenant has: "namespace (Tenant name)".
	taken []string
	// clusters that the tenant's clients can attach to.
	clusters []*v1alpha1.StorageCluster
	// malformed is what is wrong with the tenant's selector, which then selects no namespace; nil for nothing.
	malformed error
}

// look finds the namespaces and clusters that a tenant's Secrets are for.
func (r *Reconciler) look(ctx context.Context, tenant *v1alpha1.Tenant) (found, error) {
	var f found
	var tenants v1alpha1.TenantList
	var namespaces corev1.NamespaceList
	var clusters v1alpha1.StorageClusterList
	for what, list := range map[string]client.ObjectList{"Tenants": &tenants, "namespaces": &namespaces, "StorageClusters": &clusters} {
		if err := r.client.List(ctx, list); err != nil {
			return f, fmt.Errorf("list %s: %w", what, err)
		}
	}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		selects, err := tenant.Selects(ns.Labels)
		if err != nil {
			f.malformed = err
			break
		}
		if !selects || !ns.DeletionTimestamp.IsZero() {
			continue
		}
		if owner := v1alpha1.TenantOf(tenants.Items, ns.Labels); owner != nil && owner.UID != tenant.UID {
			f.taken = append(f.taken, fmt.Sprintf("%s (Tenant %s)", ns.Name, owner.Name))
		} else {
			f.namespaces = append(f.namespaces, ns.Name)
		}
	}
	slices.Sort(f.namespaces)
	for i := range clusters.Items {
		if clusters.Items[i].DeletionTimestamp.IsZero() {
			f.clusters = append(f.clusters, &clusters.Items[i])
		}
	}
	return f, nil
}

// credentials writes the tenant's Secrets into its namespaces and removes those that are where they should not be. It writes down
// each namespace before it writes a Secret there, so that none is forgotten. It returns when to look again.
func (r *Reconciler) credentials(ctx context.Context, tenant *v1alpha1.Tenant) (time.Duration, error) {
	if tenant.Status.Number == 0 {
		return again, r.numbered(ctx, tenant)
	}
	f, err := r.look(ctx, tenant)
	if err != nil {
		return 0, err
	}
	if f.malformed != nil { // what it has stays, until the selector says whether it should
		r.report(ctx, tenant, written(f, 0, nil))
		return 0, nil
	}
	surplus := len(f.namespaces) - namespacesMax
	if surplus > 0 {
		f.namespaces = f.namespaces[:namespacesMax]
	}
	known := tenant.Status.Namespaces
	for _, ns := range f.namespaces {
		if !slices.Contains(known, ns) && len(known) < namespacesMax {
			known = append(slices.Clone(known), ns)
		}
	}
	if len(known) > len(tenant.Status.Namespaces) {
		slices.Sort(known)
		tenant.Status.Namespaces = known
		return again, nil
	}
	left, err := r.removeSecrets(ctx, tenant, f)
	if err != nil {
		return 0, err
	}
	tenant.Status.Namespaces = left
	after, refused, err := r.writeSecrets(ctx, tenant, f)
	if err != nil {
		return 0, err
	}
	r.report(ctx, tenant, written(f, surplus, refused))
	return after, nil
}

// writeSecrets writes a Secret for each cluster into each namespace. It returns when the first certificate has to be renewed, and
// why Secrets could not be written.
func (r *Reconciler) writeSecrets(ctx context.Context, tenant *v1alpha1.Tenant, f found) (after time.Duration, refused []string, err error) {
	sooner := func(d time.Duration) {
		if after == 0 || d < after {
			after = d
		}
	}
	for _, cluster := range f.clusters {
		keys, err := r.keysOf(ctx, cluster)
		if err != nil {
			return 0, nil, err
		}
		if keys == nil {
			refused = append(refused, fmt.Sprintf("StorageCluster %s/%s has no keys yet", cluster.Namespace, cluster.Name))
			sooner(waiting)
			continue
		}
		for _, namespace := range f.namespaces {
			renewAt, err := r.writeSecret(ctx, tenant, cluster, namespace, keys)
			taken, isTaken := errors.AsType[*apply.TakenError](err)
			switch {
			case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err):
				// the namespace goes, which starts the next look
			case isTaken:
				refused = append(refused, taken.Error())
				sooner(waiting)
			case apierrors.IsForbidden(err):
				refused = append(refused, fmt.Sprintf("the operator may not write Secret %s in namespace %s: name the namespace in operator.watchNamespaces of the chart",
					manifest.TenantName(cluster.Name), namespace))
				sooner(waiting)
			case err != nil:
				return 0, nil, err
			default:
				sooner(max(time.Second, renewAt.Sub(r.clock.Now())))
			}
		}
	}
	return after, refused, nil
}

// clusterKeys is what a tenant's Secrets of a cluster are made of.
type clusterKeys struct {
	authority pki.Pair
	system    []byte
}

// keysOf reads authority and system key of a cluster; nil while it has none.
func (r *Reconciler) keysOf(ctx context.Context, cluster *v1alpha1.StorageCluster) (*clusterKeys, error) {
	var authority, auth corev1.Secret
	for name, secret := range map[string]*corev1.Secret{
		manifest.AuthorityName(cluster.Name): &authority, manifest.AuthName(cluster.Name): &auth,
	} {
		err := r.client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read Secret %s/%s: %w", cluster.Namespace, name, err)
		}
	}
	system, err := keys.Parse(auth.Data[manifest.KeySystemKey])
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s, key %s: %w", auth.Namespace, auth.Name, manifest.KeySystemKey, err)
	}
	return &clusterKeys{authority: certificate.Pair(&authority), system: system}, nil
}

// writeSecret writes what the tenant's clients of one namespace attach to a cluster with: addresses, the tenant's key, and a
// certificate that reads what is the tenant's.
func (r *Reconciler) writeSecret(ctx context.Context, tenant *v1alpha1.Tenant, cluster *v1alpha1.StorageCluster, namespace string, k *clusterKeys) (time.Time, error) {
	attach, err := manifest.TenantFile(cluster, tenant.Status.Number)
	if err != nil {
		return time.Time{}, err
	}
	secret := secretOf(tenant, cluster, namespace)
	tenantNumber := uint64(tenant.Status.Number)
	leaf := pki.Leaf{CommonName: secret.Name, Role: roles.Role{Name: roles.TenantReader, Tenant: tenantNumber}}
	extra := map[string][]byte{
		manifest.KeyClient: attach, manifest.KeyTenantKey: keys.Format(keys.Tenant(k.system, tenantNumber)),
	}
	return certificate.Ensure(ctx, certificate.Store{Client: r.client, Live: r.live, Clock: r.clock}, secret, k.authority, leaf, extra)
}

// secretOf is the tenant's Secret of a cluster in a namespace; who makes it fills it in. It can't be owned across namespaces: label
// and annotations say whose it is.
func secretOf(tenant *v1alpha1.Tenant, cluster *v1alpha1.StorageCluster, namespace string) *corev1.Secret {
	labels := manifest.Labels(cluster.Name)
	labels[v1alpha1.LabelTenant] = string(tenant.UID)
	return &corev1.Secret{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: manifest.TenantName(cluster.Name), Labels: labels,
			Annotations: map[string]string{
				v1alpha1.AnnotationCluster: cluster.Namespace + "/" + cluster.Name, v1alpha1.AnnotationTenant: tenant.Name,
			},
		},
	}
}

// removeSecrets deletes the tenant's Secrets in namespaces, and of clusters, that it has not. It returns the namespaces that still
// may have one.
func (r *Reconciler) removeSecrets(ctx context.Context, tenant *v1alpha1.Tenant, f found) ([]string, error) {
	wanted := map[client.ObjectKey]bool{}
	for _, cluster := range f.clusters {
		for _, namespace := range f.namespaces {
			wanted[client.ObjectKeyFromObject(secretOf(tenant, cluster, namespace))] = true
		}
	}
	var secrets corev1.SecretList
	if err := r.client.List(ctx, &secrets, client.MatchingLabels{v1alpha1.LabelTenant: string(tenant.UID)}); err != nil {
		return nil, fmt.Errorf("list Secrets of Tenant %s: %w", tenant.Name, err)
	}
	surplus := map[client.ObjectKey]bool{}
	for i := range secrets.Items {
		if key := client.ObjectKeyFromObject(&secrets.Items[i]); !wanted[key] {
			surplus[key] = true
		}
	}
	// What the cache does not show yet was written for a cluster of now.
	for _, namespace := range tenant.Status.Namespaces {
		if slices.Contains(f.namespaces, namespace) {
			continue
		}
		for _, cluster := range f.clusters {
			surplus[client.ObjectKeyFromObject(secretOf(tenant, cluster, namespace))] = true
		}
	}
	for key := range surplus {
		if err := r.removeSecret(ctx, tenant, key); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(slices.Clone(tenant.Status.Namespaces), func(namespace string) bool {
		return !slices.Contains(f.namespaces, namespace)
	}), nil
}

// removeSecret deletes a Secret if it is the tenant's.
func (r *Reconciler) removeSecret(ctx context.Context, tenant *v1alpha1.Tenant, key client.ObjectKey) error {
	var secret corev1.Secret
	err := r.live.Get(ctx, key, &secret)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil // gone, or in a namespace that the operator does not serve
	}
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", key, err)
	}
	if secret.Labels[v1alpha1.LabelTenant] != string(tenant.UID) {
		return nil
	}
	// Unless the namespace's next tenant has written to it since.
	err = r.client.Delete(ctx, &secret, client.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Secret %s: %w", key, err)
	}
	return nil
}

// written is what to say of the tenant's Secrets.
func written(f found, surplus int, refused []string) status.Condition {
	lacking := func(reason, message string) status.Condition {
		return status.Of(v1alpha1.ConditionCredentialsWritten, false, reason, message)
	}
	switch {
	case f.malformed != nil:
		return lacking(v1alpha1.ReasonSelectorMalformed, fmt.Sprintf(
			"the tenant gets no namespace, and keeps the Secrets that it has: %v. Correct the selector", f.malformed))
	case len(refused) > 0:
		return lacking(v1alpha1.ReasonSecretsRefused, "Secrets are missing: "+status.ListSome(refused, 3))
	case surplus > 0:
		return lacking(v1alpha1.ReasonTooManyNamespaces, fmt.Sprintf(
			"the tenant selects %d namespaces more than the %d that it can have: make several Tenants", surplus, namespacesMax))
	case len(f.taken) > 0:
		return lacking(v1alpha1.ReasonNamespaceTaken, fmt.Sprintf(
			"namespaces belong to an older Tenant that selects them, too: %s. Change the labels, or one of the selectors", status.ListSome(f.taken, 3)))
	case len(f.namespaces) == 0:
		return lacking(v1alpha1.ReasonNoNamespace, "no namespace has the labels of spec.namespaceSelector: label one")
	case len(f.clusters) == 0:
		return lacking(v1alpha1.ReasonNoCluster, "there is no StorageCluster yet: create one")
	default:
		return status.Of(v1alpha1.ConditionCredentialsWritten, true, v1alpha1.ReasonSecretsWritten, fmt.Sprintf(
			"clients in %s attach with the Secrets weir-tenant-<cluster>", status.ListSome(slices.Clone(f.namespaces), 3)))
	}
}
