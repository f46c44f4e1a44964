package storagecluster

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/internal/manifest"
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

func TestALostSystemKeyIsRestoredFromTheClientSecret(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	cluster := inDirectories()
	clients := func(meta metav1.ObjectMeta, key string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{manifest.KeySystemKey: []byte(key)}}
	}
	own, earlier := manifest.Meta(cluster, "weir-client"), inDirectories()
	earlier.UID = "earlier"
	tests := map[string]struct {
		there    []client.Object
		restored bool
	}{
		"from the one that clients have":     {[]client.Object{clients(own, key)}, true},
		"but not one that was mutilated":     {[]client.Object{clients(own, "short")}, false},
		"nor one that somebody else has put": {[]client.Object{clients(byHand("data", "weir-client"), key)}, false},
		"nor that of an earlier cluster":     {[]client.Object{clients(manifest.Meta(earlier, "weir-client"), key)}, false},
		"where there is none, one is drawn":  {nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			server := holding(t, append(tc.there, cluster)...)
			got, err := reconciler(server, server).ensureSystemKey(t.Context(), cluster)
			if err != nil || (string(got) == key) != tc.restored {
				t.Errorf("key %q, %v", got, err)
			}
			var kept corev1.Secret
			if err := server.Get(t.Context(), client.ObjectKey{Namespace: "data", Name: "weir-auth"}, &kept); err != nil || !bytes.Equal(kept.Data[manifest.KeySystemKey], got) {
				t.Errorf("kept %q, %v", kept.Data, err)
			}
		})
	}
}
