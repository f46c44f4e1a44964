package storagecluster

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/engine/proto/keys"
	"weir.dev/weir/engine/proto/management/roles"
	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/certificate"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/pki"
)

// credentials is what engines and clients prove themselves with.
type credentials struct {
	authority pki.Pair
	systemKey []byte
	// engineKey is what engines have for themselves.
	engineKey []byte
	// renewAt is when the first certificate has to be renewed.
	renewAt time.Time
	// clientSecretOwner is who else has the name of the client Secret, such as "StorageCluster namespace/name".
	clientSecretOwner string
}

// fingerprint changes when engines have to be restarted to read what is new. Certificates they read again by themselves.
func (c credentials) fingerprint(config string) string {
	return manifest.Fingerprint([]byte(config), c.systemKey, c.engineKey)
}

// seals changes when engines with what is new can't talk to those without it.
func (c credentials) seals() string {
	return manifest.Fingerprint(c.engineKey)
}

// ensureCredentials makes, or renews, certificates and keys, and the Secret that clients attach with.
func (r *Reconciler) ensureCredentials(ctx context.Context, cluster *v1alpha1.StorageCluster) (credentials, error) {
	var result credentials
	authority, renewAt, err := r.ensureAuthority(ctx, cluster)
	if err != nil {
		return result, err
	}
	result.authority, result.renewAt = authority, renewAt
	if result.systemKey, err = r.ensureSystemKey(ctx, cluster); err != nil {
		return result, err
	}
	if result.engineKey, err = r.ensureEngineKey(ctx, cluster); err != nil {
		return result, err
	}
	engineSecret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: manifest.Meta(cluster, manifest.EngineTLSName(cluster.Name)),
		Type:       corev1.SecretTypeTLS,
	}
	leaf := pki.Leaf{CommonName: cluster.Name + "-engine", DNSNames: manifest.ServerNames(cluster), Server: true}
	if renewAt, err = r.ensureLeaf(ctx, engineSecret, authority, leaf, nil); err != nil {
		return result, err
	}
	result.renewAt = earlier(result.renewAt, renewAt)
	if renewAt, err = r.ensureManagementSecrets(ctx, cluster, authority); err != nil {
		return result, err
	}
	result.renewAt = earlier(result.renewAt, renewAt)
	renewAt, err = r.ensureClientSecrets(ctx, cluster, &result)
	result.renewAt = earlier(result.renewAt, renewAt)
	return result, err
}

// ensureAuthority reads, makes or renews the certificate authority.
func (r *Reconciler) ensureAuthority(ctx context.Context, cluster *v1alpha1.StorageCluster) (pki.Pair, time.Time, error) {
	now := r.clock.Now()
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: manifest.Meta(cluster, manifest.AuthorityName(cluster.Name)),
		Type:       corev1.SecretTypeTLS,
	}
	existing, found, err := apply.Own(ctx, r.client, r.live, secret)
	if err != nil {
		return pki.Pair{}, time.Time{}, err
	}
	if !found {
		authority, err := pki.NewAuthority(cluster.Name+"-ca", now)
		if err != nil {
			return pki.Pair{}, time.Time{}, err
		}
		secret.Data = map[string][]byte{manifest.KeyCert: authority.Cert, manifest.KeyPrivate: authority.Key}
		// Create, not apply: an authority that a stale cache does not show yet must not be replaced.
		if err := r.client.Create(ctx, secret); err != nil {
			return pki.Pair{}, time.Time{}, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
		}
		expires, err := pki.AuthorityExpires(authority)
		return authority, expires, err
	}
	authority := certificate.Pair(existing)
	expires, err := pki.AuthorityExpires(authority)
	if err != nil {
		return pki.Pair{}, time.Time{}, fmt.Errorf("secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if now.Before(expires) {
		return authority, expires, nil
	}
	if authority, err = pki.RenewAuthority(authority, now); err != nil {
		return pki.Pair{}, time.Time{}, err
	}
	secret.Data = map[string][]byte{manifest.KeyCert: authority.Cert, manifest.KeyPrivate: authority.Key}
	if err := apply.Object(ctx, r.client, r.live, secret); err != nil {
		return pki.Pair{}, time.Time{}, err
	}
	r.reporter.Event(cluster, corev1.EventTypeNormal, "AuthorityRenewed", "RenewCertificates",
		"renewed the certificate authority; engines and clients read it within a minute or two")
	expires, err = pki.AuthorityExpires(authority)
	return authority, expires, err
}

// ensureSystemKey reads or makes the secret that engines and clients share. It outlives the cluster under
// deletionPolicy Retain.
func (r *Reconciler) ensureSystemKey(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]byte, error) {
	secret := systemKeySecret(cluster)
	existing, found, err := apply.Own(ctx, r.client, r.live, secret)
	if err != nil {
		return nil, err
	}
	if found {
		key := existing.Data[manifest.KeySystemKey]
		if !isKey(key) {
			return nil, fmt.Errorf("secret %s/%s: %s is not base64 of %d bytes: restore it, clients and engines know each other by it",
				secret.Namespace, secret.Name, manifest.KeySystemKey, keys.Bytes)
		}
		return key, nil
	}
	// Engines that run with another key than the others can't reach them, so that a rollout would stop at the first one.
	clients := clientSecret(cluster)
	key, err := r.systemKeyOf(ctx, clients)
	if err != nil {
		return nil, err
	}
	restored := key != nil
	if !restored {
		if key, err = drawKey(); err != nil {
			return nil, err
		}
	}
	secret.Data = map[string][]byte{manifest.KeySystemKey: key}
	if err := r.client.Create(ctx, secret); err != nil {
		return nil, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	if restored {
		r.reporter.Event(cluster, corev1.EventTypeWarning, "SystemKeyRestored", "RestoreSystemKey", fmt.Sprintf(
			"Secret %s was gone: it has the key of Secret %s again", secret.Name, clients.Name))
	}
	return key, nil
}

// ensureEngineKey reads or makes the secret that engines share among themselves.
func (r *Reconciler) ensureEngineKey(ctx context.Context, cluster *v1alpha1.StorageCluster) ([]byte, error) {
	secret := engineKeySecret(cluster)
	existing, found, err := apply.Own(ctx, r.client, r.live, secret)
	if err != nil {
		return nil, err
	}
	if found {
		key := existing.Data[manifest.KeyEngineKey]
		if !isKey(key) {
			return nil, fmt.Errorf("secret %s/%s: %s is not base64 of %d bytes: delete the Secret, and all engines are restarted with another key",
				secret.Namespace, secret.Name, manifest.KeyEngineKey, keys.Bytes)
		}
		return key, nil
	}
	key, err := drawKey()
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{manifest.KeyEngineKey: key}
	if err := r.client.Create(ctx, secret); err != nil {
		return nil, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return key, nil
}

// drawKey makes a key as a key file has it.
func drawKey() ([]byte, error) {
	raw := make([]byte, keys.Bytes)
	if _, err := rand.Read(raw); err != nil {
		return nil, fmt.Errorf("draw a key: %w", err)
	}
	return keys.Format(raw), nil
}

// engineKeySecret holds the engines' own key; who makes it fills it in.
func engineKeySecret(cluster *v1alpha1.StorageCluster) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: manifest.LastingMeta(cluster, manifest.EngineAuthName(cluster.Name)),
	}
}

// systemKeyOf is the system key in the Secret of clients; nil if that is not there, not the cluster's, or has none.
func (r *Reconciler) systemKeyOf(ctx context.Context, clients *corev1.Secret) ([]byte, error) {
	existing, found, err := apply.Find(ctx, r.client, r.live, clients)
	if err != nil || !found || apply.Taken(existing, clients) != nil || !isKey(existing.Data[manifest.KeySystemKey]) {
		return nil, err
	}
	return existing.Data[manifest.KeySystemKey], nil
}

// isKey tells whether a key file would have this text.
func isKey(key []byte) bool {
	raw, err := base64.StdEncoding.DecodeString(string(key))
	return err == nil && len(raw) == keys.Bytes
}

// systemKeySecret holds the system key; who makes it fills it in.
func systemKeySecret(cluster *v1alpha1.StorageCluster) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: manifest.LastingMeta(cluster, manifest.AuthName(cluster.Name)),
	}
}

// ensureLeaf keeps in secret a certificate that is good for leaf, next to the data in extra.
func (r *Reconciler) ensureLeaf(ctx context.Context, secret *corev1.Secret, authority pki.Pair, leaf pki.Leaf,
	extra map[string][]byte,
) (time.Time, error) {
	return certificate.Ensure(ctx, certificate.Store{Client: r.client, Live: r.live, Clock: r.clock}, secret, authority, leaf, extra)
}

// ensureManagementSecrets writes the Secrets of those who ask the engines' management and have no part in the data path: of the
// operator and administrators, and of those who read figures. They are in the cluster's namespace alone.
func (r *Reconciler) ensureManagementSecrets(ctx context.Context, cluster *v1alpha1.StorageCluster, authority pki.Pair) (time.Time, error) {
	attach, err := manifest.ManagementFile(cluster)
	if err != nil {
		return time.Time{}, err
	}
	extra := map[string][]byte{manifest.KeyClient: attach}
	var first time.Time
	for name, role := range map[string]roles.Name{
		manifest.ManagementName(cluster.Name): roles.Operator,
		manifest.MetricsName(cluster.Name):    roles.Metrics,
	} {
		secret := &corev1.Secret{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: manifest.Meta(cluster, name),
		}
		renewAt, err := r.ensureLeaf(ctx, secret, authority, pki.Leaf{CommonName: name, Role: roles.Role{Name: role}}, extra)
		if err != nil {
			return time.Time{}, err
		}
		first = earlier(first, renewAt)
	}
	return first, nil
}

// ensureClientSecrets writes the Secret that clients attach with, in the cluster's namespace and in the operator's, and what CSI
// controller and mount daemon read.
func (r *Reconciler) ensureClientSecrets(ctx context.Context, cluster *v1alpha1.StorageCluster, c *credentials) (time.Time, error) {
	attach, err := manifest.AttachFile(cluster, "")
	if err != nil {
		return time.Time{}, err
	}
	clone := clientClone(cluster, r.config.Namespace)
	existing, found, err := apply.Find(ctx, r.client, r.live, clone)
	if err != nil {
		return time.Time{}, err
	}
	elsewhere := cluster.Namespace != r.config.Namespace
	if found {
		if taken := apply.Taken(existing, clone); taken != nil {
			c.clientSecretOwner = taken.Owner
		}
	}
	if c.clientSecretOwner != "" && !elsewhere {
		return time.Time{}, nil
	}
	secret := clientSecret(cluster)
	extra := map[string][]byte{manifest.KeyClient: attach, manifest.KeySystemKey: c.systemKey}
	leaf := pki.Leaf{CommonName: cluster.Name + "-client", Role: roles.Role{Name: roles.Provisioner}}
	renewAt, err := r.ensureLeaf(ctx, secret, c.authority, leaf, extra)
	if err != nil {
		return renewAt, err
	}
	if c.clientSecretOwner != "" {
		return renewAt, nil
	}
	if elsewhere {
		clone.Data = secret.Data
		if err := apply.Object(ctx, r.client, r.live, clone); err != nil {
			return renewAt, err
		}
	}
	changed, err := r.enlist(ctx, cluster, secret.Data)
	if err != nil {
		return renewAt, err
	}
	if changed || !found || !equality.Semantic.DeepEqual(existing.Data, secret.Data) {
		return renewAt, r.hurryMounts(ctx, cluster, secret.Data)
	}
	return renewAt, nil
}

// hurryMounts has the kubelets look at the pods that mount the client Secret, which they do at once when an annotation
// changes and once a minute otherwise. Volumes can be mounted that much sooner.
func (r *Reconciler) hurryMounts(ctx context.Context, cluster *v1alpha1.StorageCluster, data map[string][]byte) error {
	var all []corev1.Pod
	for _, namespace := range r.config.attaching() {
		var pods corev1.PodList
		err := r.live.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelAttaches: "true"})
		if err != nil {
			return fmt.Errorf("list pods of namespace %s that mount the client Secret of StorageCluster %s/%s: %w",
				namespace, cluster.Namespace, cluster.Name, err)
		}
		all = append(all, pods.Items...)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		"client.storage.weir.dev/" + cluster.Name: manifest.Fingerprint(data[manifest.KeyClient], data[manifest.KeyCert]),
	}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	for i := range all {
		err := r.client.Patch(ctx, &all[i], client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate pod %s/%s: %w", all[i].Namespace, all[i].Name, err)
		}
	}
	return nil
}

// clientSecret is what clients attach with; who makes it fills it in.
func clientSecret(cluster *v1alpha1.StorageCluster) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: manifest.Meta(cluster, manifest.ClientName(cluster.Name)),
	}
}

// clientClone is the copy of the client Secret in the operator's namespace. It can't be owned across namespaces: the
// annotation says whose it is, and the finalizer deletes it.
func clientClone(cluster *v1alpha1.StorageCluster, namespace string) *corev1.Secret {
	meta := manifest.LastingMeta(cluster, manifest.ClientName(cluster.Name))
	meta.Namespace = namespace
	meta.Annotations = map[string]string{v1alpha1.AnnotationCluster: cluster.Namespace + "/" + cluster.Name}
	return &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta}
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
