package tests

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"weir.dev/weir/engine/proto/management/managementtest"
	"weir.dev/weir/operator/internal/assembly"
	"weir.dev/weir/operator/internal/management"
)

const (
	// reaction is how long the operator may take to do something, on two busy cores.
	reaction = 2 * time.Minute
	// look is how often a test looks whether it did.
	look = 50 * time.Millisecond

	engineImage = "weir/engine:test"
)

// installation is an operator that serves one namespace, with the nodes and engines of that namespace.
type installation struct {
	t testing.TB
	// namespace of the users' objects; operatorNamespace is the operator's.
	namespace         string
	operatorNamespace string
	clock             *clocktesting.FakePassiveClock
	registry          *prometheus.Registry
	machines          *machines
	engines           *managementtest.System
	// unreachable makes every connection to the engines fail.
	unreachable *switchable
	// stopOperator ends the operator and waits for its end; startOperator starts another one.
	stopOperator func()
}

// install starts an operator and the engines of a namespace. The clock stands still unless the test moves it.
func install(t *testing.T, engines int) *installation {
	t.Helper()
	i := furnish(t, engines)
	account := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: "weir-operator", Namespace: i.operatorNamespace}
	for _, binding := range i.bindings(account) {
		if err := admin.Create(t.Context(), binding); err != nil {
			t.Fatalf("bind the operator's role: %v", err)
		}
	}
	i.startOperator()
	t.Cleanup(func() { i.stopOperator() })
	return i
}

// furnish is install without an operator.
func furnish(t testing.TB, engines int) *installation {
	t.Helper()
	i := &installation{
		t:           t,
		unreachable: &switchable{},
		// Certificates made then are good for 25 days from now, so that a test may see them renewed.
		clock: clocktesting.NewFakePassiveClock(time.Now().Add(-65 * 24 * time.Hour)),
	}
	i.namespace = i.makeNamespace("data")
	i.operatorNamespace = i.makeNamespace("operator")
	i.engines = managementtest.Start(t, engines, managementtest.WithTLS(i.engineTLS()))
	i.machines = startMachines(t, i.namespace)
	return i
}

func (i *installation) makeNamespace(role string) string {
	i.t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: role + "-"}}
	if err := admin.Create(i.t.Context(), namespace); err != nil {
		i.t.Fatalf("create namespace: %v", err)
	}
	return namespace.Name
}

// engineTLS is the identity of the engines: what the operator put into the Secret that engine pods mount, read anew for
// each connection.
func (i *installation) engineTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			var secret corev1.Secret
			if err := admin.Get(ctx, client.ObjectKey{Namespace: i.namespace, Name: "weir-engine-tls"}, &secret); err != nil {
				return nil, err
			}
			pair, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
			if err != nil {
				return nil, err
			}
			clients := x509.NewCertPool()
			if !clients.AppendCertsFromPEM(secret.Data["ca.crt"]) {
				return nil, errors.New("no authority in the engines' Secret")
			}
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
				ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
			}, nil
		},
	}
}

// dial leads the host names of engine pods to the test's engines.
func (i *installation) dial(ctx context.Context, address string) (net.Conn, error) {
	for rank := range 8 {
		host := fmt.Sprintf("weir-engine-%d-0.weir-engines.%s.svc:10001", rank, i.namespace)
		if address == host && !i.unreachable.on() {
			return (&net.Dialer{}).DialContext(ctx, "tcp", i.engines.Address(rank))
		}
	}
	return nil, fmt.Errorf("no such host: %s", address)
}

// startOperator runs the operator as its ServiceAccount, with the roles of the chart bound as for --watch-namespaces.
func (i *installation) startOperator() {
	t := i.t
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	i.registry = prometheus.NewRegistry()
	impersonated := rest.CopyConfig(adminConfig)
	impersonated.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:weir-operator", i.operatorNamespace),
		Groups:   []string{"system:serviceaccounts", "system:authenticated"},
	}
	scheme, err := assembly.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(impersonated, ctrl.Options{
		Scheme:     scheme,
		Cache:      assembly.CacheOptions(i.operatorNamespace, i.namespace),
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true), MaxConcurrentReconciles: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = assembly.Setup(mgr, assembly.Options{
		Namespace: i.operatorNamespace, EngineImage: engineImage, Version: "test", Clock: i.clock,
		Registry: i.registry, Management: []management.Option{management.WithDial(i.dial)},
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	i.stopOperator = func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("operator: %v", err)
		}
		i.stopOperator = func() {}
	}
}

// bindings are the role bindings of the chart for an operator that serves one namespace.
func (i *installation) bindings(account rbacv1.Subject) []client.Object {
	role := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	bindings := []client.Object{&rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Namespace}, RoleRef: role(rolePrefix + "weir-operator-nodes"), Subjects: []rbacv1.Subject{account},
	}}
	own := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.operatorNamespace, Name: "weir-operator-own"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "patch"}}},
	}
	bindings = append(bindings, own, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: i.operatorNamespace, Name: own.Name}, Subjects: []rbacv1.Subject{account},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: own.Name},
	})
	for _, namespace := range []string{i.namespace, i.operatorNamespace} {
		bindings = append(bindings, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "weir-operator"}, RoleRef: role(rolePrefix + "weir-operator"), Subjects: []rbacv1.Subject{account},
		})
	}
	return bindings
}

// apply creates objects from YAML in the user's namespace and fails the test if the API server refuses one.
func (i *installation) apply(manifests string) {
	i.t.Helper()
	for _, obj := range parse(i.t, manifests) {
		obj.SetNamespace(i.namespace)
		if err := admin.Create(i.t.Context(), obj); err != nil {
			i.t.Fatalf("create %s: %v", obj.GetName(), err)
		}
	}
}

// patch changes an object by a JSON merge patch.
func (i *installation) patch(obj client.Object, name, patch string) {
	i.t.Helper()
	obj.SetNamespace(i.namespace)
	obj.SetName(name)
	if err := admin.Patch(i.t.Context(), obj, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		i.t.Fatalf("patch %s: %v", name, err)
	}
}

// get reads an object of the user's namespace.
func (i *installation) get(obj client.Object, name string) error {
	return admin.Get(context.Background(), client.ObjectKey{Namespace: i.namespace, Name: name}, obj)
}

// remove asks for the deletion of an object.
func (i *installation) remove(obj client.Object, name string) {
	i.t.Helper()
	obj.SetNamespace(i.namespace)
	obj.SetName(name)
	if err := admin.Delete(i.t.Context(), obj); err != nil {
		i.t.Fatalf("delete %s: %v", name, err)
	}
}

// eventually waits until check has nothing more to say; what it says last is in the failure.
func (i *installation) eventually(what string, check func() string) {
	i.t.Helper()
	deadline := time.Now().Add(reaction)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			i.t.Fatalf("%s: not within %s; last seen: %s", what, reaction, problem)
		}
		time.Sleep(look)
	}
}

// event waits for an event about an object.
func (i *installation) event(name, reason, contains string) {
	i.t.Helper()
	i.eventually(fmt.Sprintf("event %s of %s", reason, name), func() string {
		var list corev1.EventList
		if err := admin.List(context.Background(), &list, client.InNamespace(i.namespace)); err != nil {
			return err.Error()
		}
		var seen []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, contains) {
				return ""
			}
			seen = append(seen, e.InvolvedObject.Name+" "+e.Reason+": "+e.Message)
		}
		return strings.Join(seen, "\n")
	})
}
