package roles_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	managementv1 "weir.dev/weir/engine/proto/management/v1"

	"weir.dev/weir/engine/proto/management/roles"
)

func TestACertificateHasTheRoleThatItsNamesSay(t *testing.T) {
	for _, role := range []roles.Role{
		{Name: roles.Operator}, {Name: roles.Provisioner}, {Name: roles.Metrics}, {Name: roles.TenantReader, Tenant: 1 << 50}, {},
	} {
		if got := roles.Of(&x509.Certificate{URIs: role.URIs()}); got != role {
			t.Errorf("got %v, want %v", got, role)
		}
	}
	for _, text := range []string{"weir:role:tenant-reader", "weir:tenant:7", "other:role:operator", "https://role:operator"} {
		uri, err := url.Parse(text)
		if err == nil && roles.Of(&x509.Certificate{URIs: []*url.URL{uri}}) != (roles.Role{}) {
			t.Errorf("%s gives a role", text)
		}
	}
}

func TestEveryCallIsInTheTable(t *testing.T) {
	services := managementv1.File_management_v1_management_proto.Services()
	for s := range services.Len() {
		methods := services.Get(s).Methods()
		for m := range methods.Len() {
			call := string(services.Get(s).Name()) + "/" + string(methods.Get(m).Name())
			if err := (roles.Role{Name: roles.Operator}).Check(call); err != nil {
				t.Error(err)
			}
			if err := (roles.Role{}).Check(call); err == nil || !strings.Contains(err.Error(), "no role") {
				t.Errorf("%s without a role: %v", call, err)
			}
		}
	}
}

func TestARefusalNamesRoleAndCall(t *testing.T) {
	tests := map[string]struct {
		role roles.Role
		call string
		want string
	}{
		"the CSI driver makes no pools":      {roles.Role{Name: roles.Provisioner}, "Pools/Create", "role provisioner may not call Pools/Create"},
		"a reader changes nothing":           {roles.Role{Name: roles.TenantReader, Tenant: 7}, "Containers/Destroy", "tenant-reader of tenant 7 may not call Containers/Destroy"},
		"figures are no data":                {roles.Role{Name: roles.Metrics}, "Containers/SetQuota", "role metrics"},
		"an unknown call is nobody's":        {roles.Role{Name: roles.Operator}, "Pools/Burn", "Pools/Burn"},
		"the CSI driver makes containers":    {roles.Role{Name: roles.Provisioner}, "Containers/Create", ""},
		"a reader reads what is its own":     {roles.Role{Name: roles.TenantReader, Tenant: 7}, "Containers/List", ""},
		"figures are read by their own role": {roles.Role{Name: roles.Metrics}, "System/Query", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.role.Check(tc.call)
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestACertificateOfSeveralRolesOrTenantsHasNone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		uris []string
		want roles.Role
	}{
		"one":                        {[]string{"weir:role:operator"}, roles.Role{Name: roles.Operator}},
		"a tenant's":                 {[]string{"weir:role:tenant-reader", "weir:tenant:7"}, roles.Role{Name: roles.TenantReader, Tenant: 7}},
		"none":                       {nil, roles.Role{}},
		"two":                        {[]string{"weir:role:metrics", "weir:role:operator"}, roles.Role{}},
		"no tenant":                  {[]string{"weir:role:tenant-reader"}, roles.Role{}},
		"two tenants":                {[]string{"weir:role:tenant-reader", "weir:tenant:7", "weir:tenant:8"}, roles.Role{}},
		"a tenant that is no number": {[]string{"weir:role:tenant-reader", "weir:tenant:-1"}, roles.Role{}},
		"a tenant out of range":      {[]string{"weir:role:tenant-reader", "weir:tenant:18446744073709551616"}, roles.Role{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var certificate x509.Certificate
			for _, text := range tc.uris {
				uri, err := url.Parse(text)
				if err != nil {
					t.Fatal(err)
				}
				certificate.URIs = append(certificate.URIs, uri)
			}
			if got := roles.Of(&certificate); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
