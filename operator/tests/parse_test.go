package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/api/v1alpha1"
)

// parse reads the objects of a YAML text.
func parse(t testing.TB, text string) []*unstructured.Unstructured {
	t.Helper()
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	var objects []*unstructured.Unstructured
	for {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("read manifest: %v", err)
		}
		if len(obj.Object) > 0 {
			objects = append(objects, obj)
		}
	}
}

// conditions of the kinds that have them.
func conditions(obj client.Object) []metav1.Condition {
	switch o := obj.(type) {
	case *v1alpha1.StorageCluster:
		return o.Status.Conditions
	case *v1alpha1.NodeDevice:
		return o.Status.Conditions
	case *v1alpha1.Pool:
		return o.Status.Conditions
	case *v1alpha1.Container:
		return o.Status.Conditions
	default:
		return nil
	}
}

// condition waits until a condition has status and reason and a message with all the words, computed from the
// object's present generation.
func (i *installation) condition(obj client.Object, name, kind string, status metav1.ConditionStatus, reason string, words ...string) {
	i.t.Helper()
	i.eventually(fmt.Sprintf("%s %s=%s %s", name, kind, status, reason), func() string {
		if err := admin.Get(context.Background(), client.ObjectKey{Namespace: i.namespace, Name: name}, obj); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(conditions(obj), kind)
		seen := fmt.Sprintf("%+v", conditions(obj))
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != obj.GetGeneration() {
			return seen
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return fmt.Sprintf("message without %q: %s", word, c.Message)
			}
		}
		return ""
	})
}

// gone waits until an object does not exist any more.
func (i *installation) gone(obj client.Object, name string) {
	i.t.Helper()
	i.eventually(name+" is gone", func() string {
		err := admin.Get(context.Background(), client.ObjectKey{Namespace: i.namespace, Name: name}, obj)
		if client.IgnoreNotFound(err) != nil {
			return err.Error()
		}
		if err == nil {
			return fmt.Sprintf("it is there: %+v", conditions(obj))
		}
		return ""
	})
}

// ready waits until an object is ready.
func (i *installation) ready(obj client.Object, name string) {
	i.t.Helper()
	reason := v1alpha1.ReasonAvailable
	if _, ok := obj.(*v1alpha1.StorageCluster); ok {
		reason = v1alpha1.ReasonAllEnginesReady
	}
	i.condition(obj, name, v1alpha1.ConditionReady, metav1.ConditionTrue, reason)
}
