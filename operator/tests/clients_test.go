package tests

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

func TestCSIDriverAndMountDaemonLearnOfEveryCluster(t *testing.T) {
	t.Parallel()
	i := running(t, 1)
	enlisted := func() (map[string][]byte, error) {
		var secret corev1.Secret
		err := admin.Get(t.Context(), client.ObjectKey{Namespace: i.operatorNamespace, Name: "weir-clients"}, &secret)
		return secret.Data, err
	}
	has := func(what string, clusters ...string) {
		t.Helper()
		var want []string
		for _, cluster := range clusters {
			for _, key := range []string{"ca.crt", "client.json", "system.key", "tls.crt", "tls.key"} {
				want = append(want, cluster+"."+key)
			}
		}
		i.eventually(what, func() string {
			data, err := enlisted()
			if got := slices.Sorted(maps.Keys(data)); err != nil || !slices.Equal(got, want) {
				return strings.Join(got, " ")
			}
			return ""
		})
	}
	has("the first cluster's keys", "weir")
	i.apply(strings.ReplaceAll(i.machines.cluster(1, ""), "name: weir", "name: archive"))
	has("the second one's beside them", "archive", "weir")
	data, err := enlisted()
	if err != nil {
		t.Fatal(err)
	}
	var attach struct {
		System string `json:"system"`
		Key    string `json:"system_key_file"`
	}
	if err := json.Unmarshal(data["archive.client.json"], &attach); err != nil || attach.System != "archive" || data[attach.Key] == nil {
		t.Errorf("attach file %s, %v", data["archive.client.json"], err)
	}
	// Its pods are ready, but no engine stands behind them that could say that nobody uses it.
	i.patch(&v1alpha1.StorageCluster{}, "archive", `{"metadata": {"annotations": {"`+v1alpha1.AnnotationStopInUse+`": "true"}}}`)
	i.remove(&v1alpha1.StorageCluster{}, "archive")
	i.gone(&v1alpha1.StorageCluster{}, "archive")
	has("those of the first alone", "weir")
	i.remove(&v1alpha1.StorageCluster{}, "weir")
	i.gone(&v1alpha1.StorageCluster{}, "weir")
	if data, err := enlisted(); !apierrors.IsNotFound(err) {
		t.Errorf("left: %v, %v", slices.Collect(maps.Keys(data)), err)
	}
}
