package node

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func TestAVolumeIsMountedWithTheCredentialsOfItsSecret(t *testing.T) {
	tests := map[string]struct {
		secrets map[string]string
		attach  string
		key     string
		code    codes.Code
	}{
		"none":                         {},
		"a tenant's":                   {secrets: map[string]string{"client.json": "{}", "tenant.key": "k7", "tls.key": "unused"}, attach: "{}", key: "k7"},
		"the system's":                 {secrets: map[string]string{"client.json": "{}", "system.key": "k0"}, attach: "{}", key: "k0"},
		"a tenant's before the system": {secrets: map[string]string{"client.json": "{}", "tenant.key": "k7", "system.key": "k0"}, attach: "{}", key: "k7"},
		"no attach file":               {secrets: map[string]string{"tenant.key": "k7"}, code: codes.InvalidArgument},
		"no key":                       {secrets: map[string]string{"client.json": "{}"}, code: codes.InvalidArgument},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			_, err := f.NodeStageVolume(f.ctx(), &csi.NodeStageVolumeRequest{
				VolumeId: oneVolume, StagingTargetPath: f.path(stagingName), VolumeCapability: capability(writeMany), Secrets: tc.secrets,
			})
			if tc.code != codes.OK {
				want(t, err, tc.code, "weir-tenant-<cluster>")
				return
			}
			want(t, err, codes.OK)
			got := f.node.Served(f.path(stagingName)).GetCredentials()
			if string(got.GetAttach()) != tc.attach || string(got.GetKey()) != tc.key || (got == nil) != (tc.secrets == nil) {
				t.Errorf("mounted with %v", got)
			}
		})
	}
}
