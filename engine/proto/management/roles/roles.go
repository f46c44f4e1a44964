// Package roles says what the holders of certificates may ask of a system's management: a certificate has a role, and a table
// lists the roles of each call. Engines enforce it by the same table.
package roles

import (
	"crypto/x509"
	_ "embed"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Name is what a role is called in certificates and in messages.
type Name string

const (
	// Operator makes and destroys pools: the operator, and administrators.
	Operator Name = "operator"
	// Provisioner makes and destroys containers: the CSI driver.
	Provisioner Name = "provisioner"
	// TenantReader reads what belongs to one tenant.
	TenantReader Name = "tenant-reader"
	// Metrics reads figures.
	Metrics Name = "metrics"
)

const (
	scheme       = "weir"
	rolePrefix   = "role:"
	tenantPrefix = "tenant:"
)

//go:embed roles.txt
var text string

// table has the roles of each call.
var table = sync.OnceValue(func() map[string][]Name {
	calls := map[string][]Name{}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		for _, role := range words[1:] {
			calls[words[0]] = append(calls[words[0]], Name(role))
		}
	}
	return calls
})

// Role is the role of a certificate.
type Role struct {
	Name Name
	// Tenant of a TenantReader; 0 for the others.
	Tenant uint64
}

// String names the role as engines do.
func (r Role) String() string {
	if r.Tenant != 0 {
		return fmt.Sprintf("%s of tenant %d", r.Name, r.Tenant)
	}
	return string(r.Name)
}

// URIs are the subject alternative names that give a certificate the role; none for the zero Role.
func (r Role) URIs() []*url.URL {
	var uris []*url.URL
	if r.Name != "" {
		uris = append(uris, &url.URL{Scheme: scheme, Opaque: rolePrefix + string(r.Name)})
	}
	if r.Tenant != 0 {
		uris = append(uris, &url.URL{Scheme: scheme, Opaque: tenantPrefix + strconv.FormatUint(r.Tenant, 10)})
	}
	return uris
}

// Of is the role of a certificate; the zero Role if it has none or several, or a tenant that is no number. As Role::of_uris of the
// engines.
func Of(certificate *x509.Certificate) Role {
	var role Role
	roles, tenants := 0, 0
	for _, uri := range certificate.URIs {
		if name, is := strings.CutPrefix(uri.Opaque, rolePrefix); is && uri.Scheme == scheme {
			role.Name = Name(name)
			roles++
		}
		if number, is := strings.CutPrefix(uri.Opaque, tenantPrefix); is && uri.Scheme == scheme {
			tenant, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				return Role{}
			}
			role.Tenant = tenant
			tenants++
		}
	}
	if roles != 1 || tenants > 1 || (role.Name == TenantReader) != (role.Tenant != 0) {
		return Role{}
	}
	return role
}

// Check says why the role may not make a call, such as "Pools/Create"; nil if it may.
func (r Role) Check(call string) error {
	allowed := table()[call]
	if slices.Contains(allowed, r.Name) {
		return nil
	}
	names := make([]string, 0, len(allowed))
	for _, name := range allowed {
		names = append(names, string(name))
	}
	needed := strings.Join(names, " or ")
	if r.Name == "" {
		return fmt.Errorf("the certificate has no role, and %s needs %s", call, needed)
	}
	return fmt.Errorf("the role %s may not call %s: use a certificate of role %s", r, call, needed)
}
