package apply

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"weir.dev/weir/operator/internal/manifest"
)

// service is what the tests apply.
func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "storage", Name: "weir-engines", Labels: map[string]string{manifest.LabelManagedBy: manifest.ManagedBy, "rank": "0"},
		},
		Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Name: "fabric", Port: 10100}, {Name: "metrics", Port: 10002}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

func TestAnObjectIsWrittenOnlyWhereItDiffers(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for title, tc := range map[string]struct {
		// others change the object that is there, wanted what is applied next.
		others, wanted func(*corev1.Service)
		writes         int
	}{
		"the same again":                {nil, nil, 0},
		"somebody's own label":          {func(s *corev1.Service) { s.Labels["theirs"] = "1" }, nil, 0},
		"a default of the API server":   {func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolTCP }, nil, 0},
		"a field that somebody changed": {func(s *corev1.Service) { s.Spec.Ports[0].Port = 1 }, nil, 1},
		"a label that somebody removed": {func(s *corev1.Service) { delete(s.Labels, "rank") }, nil, 1},
		"a port that somebody added": {func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "theirs", Port: 9})
		}, nil, 1},
		"a port that is other by now":       {nil, func(s *corev1.Service) { s.Spec.Ports[0].Port = 2 }, 1},
		"a label that is not wanted by now": {nil, func(s *corev1.Service) { delete(s.Labels, "rank") }, 1},
		"a port that is not wanted by now":  {nil, func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] }, 1},
	} {
		t.Run(title, func(t *testing.T) {
			writes := 0
			c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).Build(), interceptor.Funcs{
				Apply: func(ctx context.Context, c client.WithWatch, obj runtime.ApplyConfiguration, options ...client.ApplyOption) error {
					writes++
					return c.Apply(ctx, obj, options...)
				},
			})
			apply := func(obj client.Object) {
				t.Helper()
				if err := Object(t.Context(), c, c, obj); err != nil {
					t.Fatal(err)
				}
			}
			apply(service(nil))
			if tc.others != nil {
				var there corev1.Service
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(service(nil)), &there); err != nil {
					t.Fatal(err)
				}
				tc.others(&there)
				if err := c.Update(t.Context(), &there); err != nil {
					t.Fatal(err)
				}
			}
			before := writes
			apply(service(tc.wanted))
			if writes-before != tc.writes {
				t.Errorf("written %d times, want %d", writes-before, tc.writes)
			}
		})
	}
}
