package storagecluster

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// apart is a reconciler of an operator whose agents are in a namespace of their own.
func apart(server client.Client) *Reconciler {
	r := reconciler(server, server)
	r.config.AgentsNamespace = "agents"
	return r
}

func TestAgentsInANamespaceOfTheirOwnLearnOfClusters(t *testing.T) {
	pod := func(namespace, name string, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	}
	attaches := map[string]string{v1alpha1.LabelAttaches: "true"}
	cluster := inDirectories()
	server := holding(t, cluster, pod("operator", "controller", attaches), pod("agents", "mountd", attaches),
		pod("agents", "broker", nil), pod("data", "mountd", attaches))
	r := apart(server)
	if _, err := r.ensureCredentials(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"operator", "agents"} {
		var clients corev1.Secret
		if err := server.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: manifest.ClientsName}, &clients); err != nil {
			t.Fatal(err)
		}
		if len(clients.Data[manifest.ClientPrefix("weir")+manifest.KeySystemKey]) == 0 {
			t.Errorf("%s has no key of the cluster: %v", namespace, clients.Data)
		}
	}
	var pods corev1.PodList
	if err := server.List(t.Context(), &pods); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		hurried := len(p.Annotations) > 0
		if want := p.Namespace != "data" && p.Name != "broker"; hurried != want {
			t.Errorf("%s/%s is annotated: %t, want %t", p.Namespace, p.Name, hurried, want)
		}
	}
	if err := r.delist(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"operator", "agents"} {
		err := server.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: manifest.ClientsName}, &corev1.Secret{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("%s keeps the Secret of no cluster: %v", namespace, err)
		}
	}
}

func TestASecretOfSomebodyElseInTheAgentsNamespaceIsLeft(t *testing.T) {
	foreign := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "agents", Name: manifest.ClientsName}}
	cluster := inDirectories()
	_, err := apart(holding(t, cluster, foreign)).ensureCredentials(t.Context(), cluster)
	if err == nil || !strings.Contains(err.Error(), "agents/weir-clients is not the operator's") {
		t.Errorf("error %v", err)
	}
}
