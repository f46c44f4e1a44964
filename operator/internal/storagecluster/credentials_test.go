package storagecluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestSecretsOfOthersAreNotOverwritten(t *testing.T) {
	foreign := func(namespace, name string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"tls.key": []byte("precious")}}
	}
	tests := map[string]struct {
		secret *corev1.Secret
		// refused is in the error; the cluster works without the copy of its client Secret.
		refused string
	}{
		"the authority":                        {foreign("data", "weir-ca"), "weir-ca belongs to somebody else"},
		"the system key":                       {foreign("data", "weir-auth"), "weir-auth belongs to somebody else"},
		"the engines' certificate":             {foreign("data", "weir-engine-tls"), "weir-engine-tls belongs to somebody else"},
		"the client Secret":                    {foreign("data", "weir-client"), "weir-client belongs to somebody else"},
		"its copy in the operator's namespace": {foreign("operator", "weir-client"), ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := inDirectories()
			cached := holding(t, cluster)
			got, err := reconciler(cached, holding(t, tc.secret)).ensureCredentials(t.Context(), cluster)
			if tc.refused == "" && (err != nil || !strings.HasPrefix(got.clientSecretOwner, "somebody else")) {
				t.Errorf("owned by %q, %v", got.clientSecretOwner, err)
			}
			if tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
				t.Errorf("error %v, want %q", err, tc.refused)
			}
			if err := cached.Get(t.Context(), client.ObjectKeyFromObject(tc.secret), &corev1.Secret{}); !apierrors.IsNotFound(err) {
				t.Errorf("the Secret was written: %v", err)
			}
		})
	}
}
