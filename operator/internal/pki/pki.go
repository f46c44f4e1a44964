// Package pki makes the certificates that engines and their clients prove themselves with: one private authority per
// StorageCluster, and short-lived leaves that are renewed long before they expire.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"weir.dev/weir/engine/proto/management/roles"
)

const (
	// authorityLifetime is long because every client has to learn of a new authority before the old one ends.
	authorityLifetime = 10 * 365 * 24 * time.Hour
	// authorityRenewal leaves every leaf issued before it time to be replaced.
	authorityRenewal = 365 * 24 * time.Hour
	// leafLifetime bounds how long a stolen key is of use.
	leafLifetime = 90 * 24 * time.Hour
	// leafRenewal leaves a month to mend whatever keeps a renewal from reaching an engine.
	leafRenewal = 30 * 24 * time.Hour
	// clockSkew is how far a node's clock may be behind the operator's.
	clockSkew = 5 * time.Minute
	// serialBits makes serial numbers unguessable (RFC 5280 §4.1.2.2 allows 20 octets).
	serialBits = 120
)

// Pair is a certificate and its key, both PEM.
type Pair struct {
	Cert []byte
	Key  []byte
}

// Leaf describes a certificate to issue.
type Leaf struct {
	// CommonName tells roles apart in logs.
	CommonName string
	// DNSNames that the holder may be reached by; empty for pure clients.
	DNSNames []string
	// Server is true when the holder accepts connections. Every holder may open them.
	Server bool
	// Role says what the holder may ask of engines; the zero Role may ask for nothing.
	Role roles.Role
}

// NewAuthority makes a certificate authority.
func NewAuthority(name string, now time.Time) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make key of authority %s: %w", name, err)
	}
	return selfSign(name, key, now)
}

// RenewAuthority gives the authority a new certificate for the same name and key, so that leaves issued before verify
// against the new certificate and leaves issued from now on verify against the old one.
func RenewAuthority(authority Pair, now time.Time) (Pair, error) {
	cert, key, err := parse(authority)
	if err != nil {
		return Pair{}, err
	}
	return selfSign(cert.Subject.CommonName, key, now)
}

// AuthorityExpires tells when the authority should be renewed.
func AuthorityExpires(authority Pair) (time.Time, error) {
	cert, _, err := parse(authority)
	if err != nil {
		return time.Time{}, err
	}
	return cert.NotAfter.Add(-authorityRenewal), nil
}

// Issue makes a certificate signed by the authority.
func Issue(authority Pair, leaf Leaf, now time.Time) (Pair, error) {
	caCert, caKey, err := parse(authority)
	if err != nil {
		return Pair{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make key of %s: %w", leaf.CommonName, err)
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if leaf.Server {
		usage = append(usage, x509.ExtKeyUsageServerAuth)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName},
		DNSNames:     leaf.DNSNames,
		URIs:         leaf.Role.URIs(),
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  usage,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, caCert, key.Public(), caKey)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate of %s: %w", leaf.CommonName, err)
	}
	return encode(der, key)
}

// RenewAt tells when the pair has to be replaced to go on serving as leaf. It is the zero time, which is always past,
// when the pair can't serve at all: unreadable, another name or role, or another authority.
func RenewAt(authority, pair Pair, leaf Leaf) time.Time {
	cert, key, err := parse(pair)
	if err != nil {
		return time.Time{}
	}
	caCert, _, err := parse(authority)
	if err != nil || cert.CheckSignatureFrom(caCert) != nil {
		return time.Time{}
	}
	sameKey := key.PublicKey.Equal(cert.PublicKey)
	sameNames := slices.Equal(cert.DNSNames, leaf.DNSNames) && cert.Subject.CommonName == leaf.CommonName
	sameUse := slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) == leaf.Server
	if !sameKey || !sameNames || !sameUse || roles.Of(cert) != leaf.Role {
		return time.Time{}
	}
	return cert.NotAfter.Add(-leafRenewal)
}

func selfSign(name string, key *ecdsa.PrivateKey, now time.Time) (Pair, error) {
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLifetime),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate of authority %s: %w", name, err)
	}
	return encode(der, key)
}

func serialNumber() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return serial, nil
}

func encode(der []byte, key crypto.PrivateKey) (Pair, error) {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode private key: %w", err)
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}

func parse(pair Pair) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certBlock, _ := pem.Decode(bytes.TrimSpace(pair.Cert))
	keyBlock, _ := pem.Decode(bytes.TrimSpace(pair.Key))
	if certBlock == nil || keyBlock == nil {
		return nil, nil, errors.New("certificate or key is not PEM: delete the Secret to have it made anew")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("read certificate: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("read key of %s: %w", cert.Subject.CommonName, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("key of %s is not an elliptic-curve key", cert.Subject.CommonName)
	}
	return cert, key, nil
}
