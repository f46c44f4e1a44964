// Package certificate keeps certificates in Secrets good for what they are for.
package certificate

import (
	"bytes"
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"weir.dev/weir/operator/internal/apply"
	"weir.dev/weir/operator/internal/manifest"
	"weir.dev/weir/operator/internal/pki"
)

// Store is where Secrets are, and what time it is.
type Store struct {
	Client client.Client
	// Live reads past the cache.
	Live  client.Reader
	Clock clock.PassiveClock
}

// Ensure keeps in secret a certificate that is good for leaf, next to the data in extra. It returns when that has to be renewed.
func Ensure(ctx context.Context, s Store, secret *corev1.Secret, authority pki.Pair, leaf pki.Leaf, extra map[string][]byte) (time.Time, error) {
	now := s.Clock.Now()
	existing, found, err := apply.Own(ctx, s.Client, s.Live, secret)
	if err != nil {
		return time.Time{}, err
	}
	var current pki.Pair
	if found {
		current = Pair(existing)
	}
	renewAt := pki.RenewAt(authority, current, leaf)
	if !now.Before(renewAt) {
		if current, err = pki.Issue(authority, leaf, now); err != nil {
			return time.Time{}, err
		}
		renewAt = pki.RenewAt(authority, current, leaf)
	}
	secret.Data = map[string][]byte{
		manifest.KeyCA: authority.Cert, manifest.KeyCert: current.Cert, manifest.KeyPrivate: current.Key,
	}
	maps.Copy(secret.Data, extra)
	if found && same(existing, secret) {
		return renewAt, nil
	}
	return renewAt, apply.Object(ctx, s.Client, s.Live, secret)
}

// same tells whether writing wanted would change nothing.
func same(existing, wanted *corev1.Secret) bool {
	has := func(all, some map[string]string) bool {
		for key, value := range some {
			if all[key] != value {
				return false
			}
		}
		return true
	}
	return maps.EqualFunc(existing.Data, wanted.Data, bytes.Equal) && existing.Type == kind(wanted) &&
		has(existing.Labels, wanted.Labels) && has(existing.Annotations, wanted.Annotations) &&
		equality.Semantic.DeepEqual(existing.OwnerReferences, wanted.OwnerReferences)
}

// kind is the type that the API server gives a Secret.
func kind(secret *corev1.Secret) corev1.SecretType {
	if secret.Type == "" {
		return corev1.SecretTypeOpaque
	}
	return secret.Type
}

// Pair is the certificate in a Secret, and its key.
func Pair(secret *corev1.Secret) pki.Pair {
	return pki.Pair{Cert: secret.Data[manifest.KeyCert], Key: secret.Data[manifest.KeyPrivate]}
}
