package tenants

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/engine/proto/keys"
	"weir.dev/weir/engine/proto/management/roles"
	"weir.dev/weir/operator/api/v1alpha1"
)

const clusterSpec = `{engines: {replicas: 1, targetsPerEngine: 1}, storage: {size: 8Gi, hostPath: {path: /var/lib/weir}}}`

func namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	if err := admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}); err != nil {
		t.Fatal(err)
	}
}

// cluster makes the StorageCluster of the tests, whose engines never run.
func cluster(t *testing.T) {
	t.Helper()
	cluster := object(t, "StorageCluster", "weir", clusterSpec)
	cluster.SetNamespace("storage")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "storage"}}
	for _, obj := range []client.Object{ns, cluster} {
		if err := admin.Create(t.Context(), obj, fieldSet); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
}

// secretOf waits for the Secret of a tenant in a namespace.
func secretOf(t *testing.T, tenant *v1alpha1.Tenant, namespace string) *corev1.Secret {
	t.Helper()
	var secret corev1.Secret
	eventually(t, "the Secret of Tenant "+tenant.Name+" in "+namespace, func() string {
		if err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "weir-tenant-weir"}, &secret); err != nil {
			return err.Error()
		}
		if owner := secret.Annotations[v1alpha1.AnnotationTenant]; owner != tenant.Name {
			return "it is Tenant " + owner + "'s"
		}
		return ""
	})
	return &secret
}

func noSecretIn(t *testing.T, namespace string) {
	t.Helper()
	eventually(t, "no Secret in "+namespace, func() string {
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "weir-tenant-weir"}, &corev1.Secret{})
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("there: %v", err)
	})
}

// checkSecret looks at what a tenant's Secret lets its holder do.
func checkSecret(t *testing.T, secret *corev1.Secret, number int64) {
	t.Helper()
	var auth corev1.Secret
	if err := admin.Get(t.Context(), client.ObjectKey{Namespace: "storage", Name: "weir-auth"}, &auth); err != nil {
		t.Fatal(err)
	}
	system, err := keys.Parse(auth.Data["system.key"])
	if err != nil {
		t.Fatal(err)
	}
	if got, want := secret.Data["tenant.key"], keys.Format(keys.Tenant(system, uint64(number))); !bytes.Equal(got, want) {
		t.Errorf("the tenant's key is %s, want %s", got, want)
	}
	var attach struct {
		System    string `json:"system"`
		Tenant    int64  `json:"tenant"`
		TenantKey string `json:"tenant_key_file"`
		SystemKey string `json:"system_key_file"`
	}
	if err := json.Unmarshal(secret.Data["client.json"], &attach); err != nil {
		t.Fatal(err)
	}
	if attach.System != "weir" || attach.Tenant != number || attach.TenantKey != "tenant.key" || attach.SystemKey != "" {
		t.Errorf("attach file %s", secret.Data["client.json"])
	}
	for name, value := range secret.Data {
		if bytes.Contains(value, auth.Data["system.key"]) {
			t.Errorf("%s has the system key", name)
		}
	}
	block, _ := pem.Decode(secret.Data["tls.crt"])
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if role := roles.Of(certificate); role != (roles.Role{Name: roles.TenantReader, Tenant: uint64(number)}) {
		t.Errorf("the certificate has the role %s", role)
	}
}

func TestEveryNamespaceOfATenantHasItsSecretAndNoOther(t *testing.T) {
	mine := map[string]string{"team": "one"}
	namespace(t, "one", mine)
	namespace(t, "stranger", map[string]string{"team": "nobody"})
	var one, two v1alpha1.Tenant
	create(t, "Tenant", "one", `{namespaceSelector: {matchLabels: {team: one}}, vni: {mode: None}}`)
	condition(t, &one, "one", v1alpha1.ConditionCredentialsWritten, false, v1alpha1.ReasonNoCluster, "create one")
	cluster(t)
	condition(t, &one, "one", v1alpha1.ConditionReady, true, v1alpha1.ReasonTenantReady, fmt.Sprint(one.Status.Number))
	if one.Status.Number < v1alpha1.TenantNumberMin || one.Status.Number > v1alpha1.TenantNumberMax {
		t.Errorf("number %d", one.Status.Number)
	}
	checkSecret(t, secretOf(t, &one, "one"), one.Status.Number)
	other := one.DeepCopy()
	other.Status.Number++
	checkRefusal(t, admin.Status().Patch(t.Context(), other, client.MergeFrom(&one), client.DryRunAll), "number is immutable")

	// Namespaces come and go.
	namespace(t, "one-more", mine)
	checkSecret(t, secretOf(t, &one, "one-more"), one.Status.Number)
	unlabel := client.RawPatch("application/merge-patch+json", []byte(`{"metadata": {"labels": {"team": null}}}`))
	if err := admin.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, unlabel); err != nil {
		t.Fatal(err)
	}
	noSecretIn(t, "one")
	noSecretIn(t, "stranger")
	// What somebody deletes is written again.
	if err := admin.Delete(t.Context(), secretOf(t, &one, "one-more")); err != nil {
		t.Fatal(err)
	}
	checkSecret(t, secretOf(t, &one, "one-more"), one.Status.Number)

	// The oldest of several Tenants has a namespace, the next one takes it over.
	create(t, "Tenant", "two", `{namespaceSelector: {matchLabels: {team: one}}, vni: {mode: None}}`)
	condition(t, &two, "two", v1alpha1.ConditionCredentialsWritten, false, v1alpha1.ReasonNamespaceTaken, "one-more (Tenant one)")
	remove(t, &v1alpha1.Tenant{}, "one")
	gone(t, &v1alpha1.Tenant{}, "one")
	condition(t, &two, "two", v1alpha1.ConditionReady, true, v1alpha1.ReasonTenantReady)
	if two.Status.Number == one.Status.Number {
		t.Error("the number of a deleted Tenant is given away again")
	}
	checkSecret(t, secretOf(t, &two, "one-more"), two.Status.Number)

	// One of the same name is another one.
	remove(t, &v1alpha1.Tenant{}, "two")
	gone(t, &v1alpha1.Tenant{}, "two")
	noSecretIn(t, "one-more")
	var again v1alpha1.Tenant
	create(t, "Tenant", "two", `{namespaceSelector: {matchLabels: {team: one}}, vni: {mode: None}}`)
	condition(t, &again, "two", v1alpha1.ConditionReady, true, v1alpha1.ReasonTenantReady)
	if again.Status.Number == two.Status.Number {
		t.Error("a Tenant of the name of a deleted one has its number")
	}
	remove(t, &v1alpha1.Tenant{}, "two")
	gone(t, &v1alpha1.Tenant{}, "two")
}

func TestAMalformedSelectorHurtsOnlyItsOwnTenant(t *testing.T) {
	cluster(t)
	namespace(t, "apart", map[string]string{"team": "apart"})
	var bad, good v1alpha1.Tenant
	create(t, "Tenant", "malformed", `{namespaceSelector: {matchExpressions: [{key: team, operator: Resembles, values: [apart]}]}, vni: {mode: None}}`)
	condition(t, &bad, "malformed", v1alpha1.ConditionReady, false, v1alpha1.ReasonSelectorMalformed, "Resembles", "Correct the selector")
	create(t, "Tenant", "wellformed", `{namespaceSelector: {matchLabels: {team: apart}}, vni: {mode: None}}`)
	condition(t, &good, "wellformed", v1alpha1.ConditionReady, true, v1alpha1.ReasonTenantReady)
	checkSecret(t, secretOf(t, &good, "apart"), good.Status.Number)
	for _, name := range []string{"malformed", "wellformed"} {
		remove(t, &v1alpha1.Tenant{}, name)
		gone(t, &v1alpha1.Tenant{}, name)
	}
}

func TestASecretOfSomebodyElseIsLeftAlone(t *testing.T) {
	cluster(t)
	namespace(t, "theirs", map[string]string{"team": "theirs"})
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "theirs", Name: "weir-tenant-weir"}, Data: map[string][]byte{"tenant.key": []byte("precious")},
	}
	if err := admin.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	var tenant v1alpha1.Tenant
	create(t, "Tenant", "theirs", `{namespaceSelector: {matchLabels: {team: theirs}}, vni: {mode: None}}`)
	condition(t, &tenant, "theirs", v1alpha1.ConditionCredentialsWritten, false, v1alpha1.ReasonSecretsRefused, "theirs/weir-tenant-weir", "belongs to somebody else")
	remove(t, &v1alpha1.Tenant{}, "theirs")
	gone(t, &v1alpha1.Tenant{}, "theirs")
	var left corev1.Secret
	if err := admin.Get(t.Context(), client.ObjectKeyFromObject(foreign), &left); err != nil || string(left.Data["tenant.key"]) != "precious" {
		t.Errorf("it was touched: %v, %v", left.Data, err)
	}
}
