package pki

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"weir.dev/weir/engine/proto/management/roles"
)

var (
	start  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	server = Leaf{CommonName: "engine", DNSNames: []string{"*.engines.ns.svc"}, Server: true}
)

func authority(t *testing.T) Pair {
	t.Helper()
	pair, err := NewAuthority("weir-ca", start)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func issue(t *testing.T, by Pair, leaf Leaf, now time.Time) Pair {
	t.Helper()
	pair, err := Issue(by, leaf, now)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// verify checks a server certificate as a TLS client would.
func verify(t *testing.T, root, pair Pair, name string, now time.Time) error {
	t.Helper()
	loaded, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(root.Cert) {
		t.Fatal("no authority")
	}
	_, err = loaded.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now})
	return err
}

func TestLeavesVerify(t *testing.T) {
	ca := authority(t)
	leaf := issue(t, ca, server, start)
	tests := map[string]struct {
		root Pair
		name string
		now  time.Time
		ok   bool
	}{
		"an engine's host name matches":              {ca, "weir-engine-7-0.engines.ns.svc", start, true},
		"a clock five minutes behind is good enough": {ca, "a.engines.ns.svc", start.Add(-clockSkew), true},
		"another namespace's name does not":          {ca, "a.engines.other.svc", start, false},
		"another authority's is refused":             {authority(t), "a.engines.ns.svc", start, false},
		"after ninety days it is refused":            {ca, "a.engines.ns.svc", start.Add(leafLifetime + time.Second), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if err := verify(t, tc.root, leaf, tc.name, tc.now); (err == nil) != tc.ok {
				t.Errorf("verify: %v", err)
			}
		})
	}
}

func TestACertificateOfAnotherRoleIsReplaced(t *testing.T) {
	ca := authority(t)
	role := func(name roles.Name) Leaf { return Leaf{CommonName: "client", Role: roles.Role{Name: name}} }
	pair := issue(t, ca, role(roles.Provisioner), start)
	if renewAt := RenewAt(ca, pair, role(roles.Provisioner)); !renewAt.After(start) {
		t.Errorf("a good certificate is to be renewed at %s", renewAt)
	}
	for _, other := range []Leaf{role(roles.Operator), {CommonName: "client"}} {
		if renewAt := RenewAt(ca, pair, other); !renewAt.IsZero() {
			t.Errorf("it serves as %q until %s", other.Role, renewAt)
		}
	}
	if renewAt := RenewAt(ca, issue(t, ca, Leaf{CommonName: "client"}, start), role(roles.Operator)); !renewAt.IsZero() {
		t.Errorf("one without a role serves until %s", renewAt)
	}
}

func TestClientsCanNotServe(t *testing.T) {
	ca := authority(t)
	if err := verify(t, ca, issue(t, ca, Leaf{CommonName: "client"}, start), "", start); err == nil {
		t.Error("a client's certificate passes for a server's")
	}
}

func TestRenewedAuthorityVerifiesOldLeavesAndOldVerifiesNew(t *testing.T) {
	old := authority(t)
	later := start.Add(authorityLifetime - authorityRenewal)
	if at, err := AuthorityExpires(old); err != nil || !at.Equal(later) {
		t.Errorf("renew at %s (%v), want %s", at, err, later)
	}
	renewed, err := RenewAuthority(old, later)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(t, renewed, issue(t, old, server, later), "a.engines.ns.svc", later); err != nil {
		t.Errorf("old leaf, new authority: %v", err)
	}
	if err := verify(t, old, issue(t, renewed, server, later), "a.engines.ns.svc", later); err != nil {
		t.Errorf("new leaf, old authority: %v", err)
	}
}

func TestRenewAt(t *testing.T) {
	ca := authority(t)
	leaf := issue(t, ca, server, start)
	other := issue(t, ca, server, start)
	never := time.Time{}
	tests := map[string]struct {
		ca, pair Pair
		leaf     Leaf
		want     time.Time
	}{
		"a good certificate is renewed a month before its end": {ca, leaf, server, start.Add(leafLifetime - leafRenewal)},
		"none at all":                    {ca, Pair{}, server, never},
		"one that is not PEM":            {ca, Pair{Cert: []byte("x"), Key: leaf.Key}, server, never},
		"the key of another certificate": {ca, Pair{Cert: leaf.Cert, Key: other.Key}, server, never},
		"another authority":              {authority(t), leaf, server, never},
		"other names":                    {ca, leaf, Leaf{CommonName: "engine", DNSNames: []string{"b"}, Server: true}, never},
		"another role":                   {ca, leaf, Leaf{CommonName: "engine", DNSNames: server.DNSNames}, never},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := RenewAt(tc.ca, tc.pair, tc.leaf); !got.Equal(tc.want) {
				t.Errorf("renew at %s, want %s", got, tc.want)
			}
		})
	}
}

func TestIssueWithABrokenAuthoritySaysWhatToDo(t *testing.T) {
	if _, err := Issue(Pair{Cert: []byte("junk"), Key: []byte("junk")}, server, start); err == nil {
		t.Error("issued by junk")
	}
}
