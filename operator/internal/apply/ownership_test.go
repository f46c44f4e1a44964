package apply

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

// cluster is a StorageCluster of namespace storage.
func cluster(name, uid string) *v1alpha1.StorageCluster {
	return &v1alpha1.StorageCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: name, UID: types.UID(uid)}}
}

// configMap is one that the operator would make with this metadata.
func configMap(meta metav1.ObjectMeta) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta, Data: map[string]string{"engine.toml": "ours"},
	}
}

func TestTaken(t *testing.T) {
	weir := cluster("weir", "this")
	owned, lasting := manifest.Meta(weir, "weir-engines"), manifest.LastingMeta(weir, "weir-placement")
	clone := manifest.LastingMeta(weir, "weir-client")
	clone.Namespace, clone.Annotations = "operator", map[string]string{v1alpha1.AnnotationCluster: "storage/weir"}
	changed := func(meta metav1.ObjectMeta, change func(*metav1.ObjectMeta)) metav1.ObjectMeta {
		change(&meta)
		return meta
	}
	ownedBy := func(owners ...metav1.OwnerReference) func(*metav1.ObjectMeta) {
		return func(meta *metav1.ObjectMeta) { meta.Labels, meta.OwnerReferences = nil, owners }
	}
	web := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: new(true)}
	plain := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "app", UID: "app"}
	namesake := metav1.OwnerReference{APIVersion: "other.example/v1", Kind: "StorageCluster", Name: "weir", UID: "that", Controller: new(true)}
	// As every release has written it, letter by letter: an operator that is upgraded must know its own.
	released := metav1.ObjectMeta{
		Namespace: "storage", Name: "weir-engines",
		Labels: map[string]string{
			"app.kubernetes.io/name": "weir", "app.kubernetes.io/managed-by": "weir-operator", "storage.weir.dev/cluster": "weir",
		},
	}
	releasedOwned := *released.DeepCopy()
	releasedOwned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "storage.weir.dev/v1alpha1", Kind: "StorageCluster", Name: "weir", UID: "this", Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	releasedClone := *released.DeepCopy()
	releasedClone.Namespace, releasedClone.Annotations = "operator", map[string]string{"storage.weir.dev/cluster": "storage/weir"}
	tests := map[string]struct {
		existing, wanted metav1.ObjectMeta
		// owner is whose it is; "" if it is the cluster's.
		owner    string
		leftover bool
		unmarked bool
	}{
		"what the cluster controls":               {existing: owned, wanted: owned},
		"what another release made for it":        {existing: releasedOwned, wanted: owned},
		"what another release left":               {existing: released, wanted: lasting},
		"what another release copied":             {existing: releasedClone, wanted: clone},
		"that, with its labels gone":              {existing: changed(owned, func(m *metav1.ObjectMeta) { m.Labels = nil }), wanted: owned},
		"what was restored without its owner":     {existing: changed(owned, func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }), wanted: owned},
		"what was given the operator's label":     {existing: metav1.ObjectMeta{Namespace: "storage", Labels: map[string]string{manifest.LabelManagedBy: manifest.ManagedBy}}, wanted: owned},
		"what outlived the cluster":               {existing: lasting, wanted: lasting},
		"that, when somebody's object refers":     {existing: changed(lasting, func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{plain} }), wanted: lasting},
		"its copy in the operator's namespace":    {existing: clone, wanted: clone},
		"what lacks label and owner":              {existing: changed(owned, ownedBy()), wanted: owned, owner: "somebody else, since it lacks the label", unmarked: true},
		"a lasting name that lacks the label":     {existing: changed(lasting, ownedBy()), wanted: lasting, owner: "somebody else", unmarked: true},
		"what Helm made":                          {existing: metav1.ObjectMeta{Namespace: "storage", Labels: map[string]string{manifest.LabelManagedBy: "Helm"}}, wanted: owned, owner: "Helm, by its label"},
		"what another kind controls":              {existing: changed(owned, ownedBy(web)), wanted: owned, owner: "Deployment storage/web"},
		"what another kind controls, labelled":    {existing: changed(owned, func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{web} }), wanted: owned, owner: "Deployment storage/web"},
		"what another group's kind controls":      {existing: changed(owned, ownedBy(namesake)), wanted: owned, owner: "StorageCluster storage/weir"},
		"what another object owns":                {existing: changed(owned, ownedBy(plain)), wanted: owned, owner: "ConfigMap storage/app"},
		"another cluster's":                       {existing: manifest.Meta(cluster("other", "that"), "weir-engines"), wanted: owned, owner: "StorageCluster storage/other"},
		"another cluster's that outlived it":      {existing: manifest.LastingMeta(cluster("other", "that"), "weir-placement"), wanted: lasting, owner: "StorageCluster storage/other"},
		"the copy of a namesake's Secret":         {existing: clone, wanted: changed(clone, func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{v1alpha1.AnnotationCluster: "data/weir"} }), owner: "StorageCluster storage/weir"},
		"what a cluster of the name owned before": {existing: manifest.Meta(cluster("weir", "earlier"), "weir-engines"), wanted: owned, owner: "StorageCluster storage/weir", leftover: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			taken := Taken(configMap(tc.existing), configMap(tc.wanted))
			if tc.owner == "" {
				if taken != nil {
					t.Fatalf("taken by %s", taken.Owner)
				}
				return
			}
			if taken == nil || !strings.HasPrefix(taken.Owner, tc.owner) || taken.Leftover != tc.leftover || taken.Unmarked != tc.unmarked {
				t.Fatalf("got %+v, want %q, leftover %v, unmarked %v", taken, tc.owner, tc.leftover, tc.unmarked)
			}
			if !strings.Contains(taken.Error(), "ConfigMap storage/weir-") && tc.wanted.Namespace == "storage" {
				t.Errorf("the error does not name the object: %s", taken)
			}
		})
	}
}

// foreign is what somebody else made under a name of the cluster's.
func foreign() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "weir-engines"}, Data: map[string]string{"engine.toml": "precious"},
	}
}

// untouched fails the test unless the API server has the object of somebody else as it was.
func untouched(t *testing.T, server client.Client) {
	t.Helper()
	got := &corev1.ConfigMap{}
	if err := server.Get(t.Context(), client.ObjectKeyFromObject(foreign()), got); err != nil {
		t.Fatal(err)
	}
	if got.Data["engine.toml"] != "precious" || len(got.Labels) != 0 || len(got.OwnerReferences) != 0 {
		t.Errorf("it was changed: %+v", got)
	}
}

// blind is a cache that does not show what somebody else made.
func blind(server client.WithWatch) client.Client {
	return interceptor.NewClient(server, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
		},
	})
}

func TestObjectsOfOthersAreNeitherAppliedNorDeleted(t *testing.T) {
	server := fake.NewClientBuilder().WithObjects(foreign()).Build()
	ours := configMap(manifest.Meta(cluster("weir", "this"), "weir-engines"))
	err := Object(t.Context(), blind(server), server, ours)
	if taken, is := errors.AsType[*TakenError](err); !is || taken.Object != "ConfigMap storage/weir-engines" {
		t.Errorf("error %v", err)
	}
	untouched(t, server)
	if err := Delete(t.Context(), blind(server), server, ours); err != nil {
		t.Errorf("delete: %v", err)
	}
	untouched(t, server)
}

func TestAnObjectThatComesBetweenLookAndApplyIsNotTakenOver(t *testing.T) {
	server := fake.NewClientBuilder().WithObjects(foreign()).Build()
	ours := configMap(manifest.Meta(cluster("weir", "this"), "weir-engines"))
	if err := Object(t.Context(), blind(server), blind(server), ours); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want a conflict, after which the operator looks again", err)
	}
	untouched(t, server)
}

func TestOwnObjectsAreAppliedAndDeleted(t *testing.T) {
	server := fake.NewClientBuilder().Build()
	ours := configMap(manifest.Meta(cluster("weir", "this"), "weir-engines"))
	for _, data := range []string{"first", "second"} {
		ours.Data["engine.toml"] = data
		if err := Object(t.Context(), server, server, ours); err != nil {
			t.Fatal(err)
		}
		got, found, err := Own(t.Context(), server, server, ours)
		if err != nil || !found || got.Data["engine.toml"] != data {
			t.Errorf("found %v %+v, %v", found, got, err)
		}
	}
	if err := Delete(t.Context(), server, server, ours); err != nil {
		t.Fatal(err)
	}
	if _, found, err := Find(t.Context(), server, server, ours); found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
}
