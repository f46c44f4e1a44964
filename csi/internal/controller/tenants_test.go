package controller

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"weir.dev/weir/csi/internal/tenants"
	managementv1 "weir.dev/weir/engine/proto/management/v1"
)

// owners are the tenants of namespaces.
type owners map[string]tenants.Tenant

func (o owners) Of(_ context.Context, namespace string) (tenants.Tenant, error) {
	if namespace == "unreadable" {
		return tenants.Tenant{}, errors.New("the API server is away")
	}
	return o[namespace], nil
}

func TestAVolumeOfATenantsPoolIsForItsOwnNamespacesOnly(t *testing.T) {
	server, system := start(t)
	server.tenants = owners{"weather": {Name: "climate", Number: 70001}, "genes": {Name: "biology", Number: 70002}, "new": {Name: "unnumbered"}}
	_, err := system.Dial().Pools().Create(bounded(t), &managementv1.PoolCreateRequest{Label: "wind", SizeBytes: poolBytes, Tenant: 70001})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		pool, namespace string
		code            codes.Code
		words           string
	}{
		"its own":                             {"wind", "weather", codes.OK, ""},
		"another tenant's":                    {"wind", "genes", codes.PermissionDenied, "pool wind belongs to tenant number 70001, and namespace genes to Tenant biology, number 70002"},
		"a tenant's that has no number yet":   {"wind", "new", codes.PermissionDenied, "Tenant unnumbered, number 0"},
		"nobody's":                            {"wind", "default", codes.PermissionDenied, "namespace default to no Tenant"},
		"unknown":                             {"wind", "", codes.FailedPrecondition, "--extra-create-metadata"},
		"one that can't be read":              {"wind", "unreadable", codes.Unavailable, "the API server is away"},
		"a pool of the system is everybody's": {"tank", "genes", codes.OK, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := server.CreateVolume(bounded(t), creation("pvc-"+tc.namespace, func(request *csi.CreateVolumeRequest) {
				request.Parameters = map[string]string{"pool": tc.pool, "csi.storage.k8s.io/pvc/name": "claim"}
				if tc.namespace != "" {
					request.Parameters["csi.storage.k8s.io/pvc/namespace"] = tc.namespace
				}
			}))
			if tc.code == codes.OK {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantStatus(t, err, tc.code, tc.words)
		})
	}
}
