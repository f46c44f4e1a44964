package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	managementv1 "weir.dev/weir/engine/proto/management/v1"
	"weir.dev/weir/operator/api/v1alpha1"
)

// client connects to the engines as administrators do.
func (i *installation) client() *grpc.ClientConn {
	i.t.Helper()
	return i.clientOf("weir-management")
}

// clientOf connects to the engines as any holder of a Secret may.
func (i *installation) clientOf(name string) *grpc.ClientConn {
	i.t.Helper()
	var secret corev1.Secret
	if err := i.get(&secret, name); err != nil {
		i.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		i.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	conn, err := grpc.NewClient(i.engines.Address(0), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "localhost",
	})))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// destroy removes a pool behind the operator's back.
func destroy(i *installation, pool string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := managementv1.NewPoolsClient(i.client()).Destroy(ctx, &managementv1.PoolDestroyRequest{Pool: pool, Force: true}); err != nil {
		i.t.Fatal(err)
	}
}

// volume makes a container that no object stands for, as the CSI driver does.
func volume(i *installation, pool, label string) {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), 10*time.Second)
	defer cancel()
	_, err := managementv1.NewContainersClient(i.client()).Create(ctx, &managementv1.ContainerCreateRequest{
		Pool: pool, Label: label, Type: managementv1.ContainerType_CONTAINER_TYPE_POSIX,
		Attributes: map[string]string{"csi.weir.dev/pvc-namespace": "apps", "csi.weir.dev/pvc-name": "data"},
	})
	if err != nil {
		i.t.Fatal(err)
	}
}

// withPool is a cluster with a pool of 4 GiB.
func withPool(t *testing.T) *installation {
	t.Helper()
	i := running(t, 1)
	i.apply(object("Pool", "tank", `{clusterRef: {name: weir}, size: 4Gi}`))
	i.ready(&v1alpha1.Pool{}, "tank")
	return i
}

func TestContainerLifeFromCreationToDestruction(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.apply(object("Container", "box", `{poolRef: {name: tank}, quota: 1Gi, chunkSize: 64Ki, owner: {uid: 1000, gid: 1000, mode: "0775"},
  attributes: {project: alpha}, deletionPolicy: Delete}`))
	var box v1alpha1.Container
	i.ready(&box, "box")
	if box.Status.UUID == "" || box.Status.ObjectClass != "SX" {
		t.Errorf("status: %+v", box.Status)
	}
	info := i.describe("tank", "box")
	if info.GetQuotaBytes() != 1<<30 || info.GetChunkSizeBytes() != 64<<10 || info.GetAttributes()["project"] != "alpha" {
		t.Errorf("the engines have %v", info)
	}
	i.patch(&v1alpha1.Container{}, "box", `{"spec": {"quota": "2Gi"}}`)
	i.eventually("the quota grows", func() string {
		if got := i.describe("tank", "box").GetQuotaBytes(); got != 2<<30 {
			return "it is not 2 GiB"
		}
		return ""
	})
	i.engines.SetUsed("tank", "box", 1<<30)
	i.patch(&v1alpha1.Container{}, "box", `{"spec": {"quota": "512Mi"}}`)
	i.condition(&box, "box", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRejected, "bytes are in use")
	if box.Status.Used.String() != "1Gi" {
		t.Errorf("used is %s", box.Status.Used)
	}
	i.patch(&v1alpha1.Container{}, "box", `{"spec": {"quota": null}}`)
	i.ready(&box, "box")

	i.engines.SetOpenHandles("tank", "box", 2)
	i.remove(&v1alpha1.Container{}, "box")
	i.condition(&box, "box", v1alpha1.ConditionDeletionBlocked, metav1.ConditionTrue, v1alpha1.ReasonOpenHandles, "2 clients", "stop the pods")
	i.event("box", v1alpha1.ReasonOpenHandles, "2 clients")
	i.engines.SetOpenHandles("tank", "box", 0)
	i.gone(&box, "box")
	i.event("box", "Destroyed", "box is destroyed")
}

// describe asks the engines for a container.
func (i *installation) describe(pool, label string) *managementv1.ContainerInfo {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := managementv1.NewContainersClient(i.client()).Query(ctx, &managementv1.ContainerQueryRequest{Pool: pool, Container: label})
	if err != nil {
		i.t.Fatal(err)
	}
	return answer.GetContainer()
}

func TestImpossibleContainersSayWhyAndWhatToDo(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	tests := map[string]struct {
		spec, reason string
		words        []string
	}{
		"no-such-pool":  {`{poolRef: {name: nowhere}}`, v1alpha1.ReasonPoolNotFound, []string{"Pool nowhere does not exist"}},
		"quota-too-big": {`{poolRef: {name: tank}, quota: 5Gi}`, v1alpha1.ReasonQuotaTooLarge, []string{"5Gi is more than pool tank has (4Gi)"}},
		"no-such-class": {`{poolRef: {name: tank}, objectClass: XX}`, v1alpha1.ReasonUnknownObjectClass, []string{`"XX" does not exist`}},
		"many-copies":   {`{poolRef: {name: tank}, objectClass: RP_2GX}`, v1alpha1.ReasonTooFewEngines, []string{"RP_2GX needs 2 engines, pool tank has 1"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			i := i.in(t)
			i.apply(object("Container", name, tc.spec))
			i.condition(&v1alpha1.Container{}, name, v1alpha1.ConditionReady, metav1.ConditionFalse, tc.reason, tc.words...)
			i.event(name, tc.reason, tc.words[0])
			i.remove(&v1alpha1.Container{}, name)
			i.gone(&v1alpha1.Container{}, name)
		})
	}
}

func TestRetainedContainerIsAdopted(t *testing.T) {
	t.Parallel()
	i := withPool(t)
	i.apply(object("Container", "box", `{poolRef: {name: tank}}`))
	var before, after v1alpha1.Container
	i.ready(&before, "box")
	i.remove(&v1alpha1.Container{}, "box")
	i.gone(&v1alpha1.Container{}, "box")
	i.apply(object("Container", "crate", `{poolRef: {name: tank}, label: box, objectClass: S1}`))
	i.condition(&v1alpha1.Container{}, "crate", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRejected,
		"pool tank has a container box already, of object class SX, not S1")
	i.remove(&v1alpha1.Container{}, "crate")
	i.gone(&v1alpha1.Container{}, "crate")
	i.apply(object("Container", "chest", `{poolRef: {name: tank}, label: box, quota: 64Mi, owner: {uid: 7, gid: 7}}`))
	i.ready(&after, "chest")
	if quota := i.describe("tank", "box").GetQuotaBytes(); quota != 64<<20 {
		t.Errorf("the quota is %d bytes", quota)
	}
	if before.Status.UUID != after.Status.UUID {
		t.Errorf("adopted %s, want %s", after.Status.UUID, before.Status.UUID)
	}
}

func TestContainerFollowsItsPoolsHealth(t *testing.T) {
	t.Parallel()
	i := running(t, 2)
	i.apply(object("Pool", "tank", goodPool) + "---\n" + object("Container", "box", `{poolRef: {name: tank}}`))
	i.ready(&v1alpha1.Container{}, "box")
	i.engines.StopEngine(1)
	i.touch(&v1alpha1.Pool{}, "tank")
	i.condition(&v1alpha1.Container{}, "box", v1alpha1.ConditionDegraded, metav1.ConditionTrue, v1alpha1.ReasonPoolDegraded, "Pool tank is degraded")
	i.engines.StartEngine(1)
	i.touch(&v1alpha1.Pool{}, "tank")
	i.ready(&v1alpha1.Container{}, "box")
}
