// Package tenants runs the controllers of FabricDomains, Tenants and VNIAllocations against a real kube-apiserver and etcd, under
// the RBAC rules that the chart installs. It has an API server of its own, since these kinds are in no namespace.
package tenants

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/assembly"
)

const (
	chartFiles = "../../../charts/weir/files/"
	// reaction is how long the operator may take to do something, on two busy cores.
	reaction          = time.Minute
	operatorNamespace = "weir-system"
	engineImage       = "weir/engine:test"
	selector          = `namespaceSelector: {matchLabels: {tenant: a}}`
	goodDomain        = `{vniRange: {first: 1000, last: 1005}, reserved: [1001], engineVNI: 1000, quarantineSeconds: 600}`
)

var (
	admin       client.Client
	adminConfig *rest.Config
	passive     = clocktesting.NewFakePassiveClock(time.Now())
	fieldSet    = client.FieldValidation("Strict")
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 0, fmt.Errorf("KUBEBUILDER_ASSETS must name a directory with kube-apiserver and etcd: export it as setup/setup.sh assets prints it")
	}
	ctrl.SetLogger(logr.Discard())
	environment := &envtest.Environment{CRDDirectoryPaths: []string{chartFiles + "crds"}, ErrorIfCRDPathMissing: true}
	config, err := environment.Start()
	if err != nil {
		return 0, fmt.Errorf("start kube-apiserver and etcd: %w", err)
	}
	defer func() { _ = environment.Stop() }()
	config.QPS, config.Burst = -1, 0
	adminConfig = config
	scheme, err := assembly.NewScheme()
	if err != nil {
		return 0, err
	}
	if admin, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return 0, fmt.Errorf("make a client: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended, err := startOperator(ctx, config)
	if err != nil {
		stop()
		return 0, err
	}
	code := m.Run()
	stop()
	return code, <-ended
}

// startOperator runs the operator as its ServiceAccount, with the roles of the chart.
func startOperator(ctx context.Context, config *rest.Config) (<-chan error, error) {
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: operatorNamespace}}); err != nil {
		return nil, err
	}
	for _, file := range []string{"rbac/namespaced/role.yaml", "rbac/cluster/role.yaml"} {
		text, err := os.ReadFile(chartFiles + file)
		if err != nil {
			return nil, err
		}
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(text, &role); err != nil {
			return nil, err
		}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "weir-operator", Namespace: operatorNamespace}},
		}
		if err := admin.Create(ctx, &role); err != nil {
			return nil, err
		}
		if err := admin.Create(ctx, binding); err != nil {
			return nil, err
		}
	}
	scheme, err := assembly.NewScheme()
	if err != nil {
		return nil, err
	}
	account := rest.CopyConfig(config)
	account.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + operatorNamespace + ":weir-operator", Groups: []string{"system:serviceaccounts", "system:authenticated"},
	}
	mgr, err := ctrl.NewManager(account, ctrl.Options{
		Scheme: scheme, Cache: assembly.CacheOptions(operatorNamespace), Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, err
	}
	err = assembly.Setup(mgr, assembly.Options{
		Namespace: operatorNamespace, EngineImage: engineImage, TenantProber: "weir/client:test", Version: "test", Clock: passive, Registry: prometheus.NewRegistry(),
	})
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	return ended, err
}

func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	text := fmt.Sprintf("{apiVersion: storage.weir.dev/v1alpha1, kind: %s, metadata: {name: %q}, spec: %s}", kind, name, spec)
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		t.Fatal(err)
	}
	return obj
}

func create(t *testing.T, kind, name, spec string) {
	t.Helper()
	if err := admin.Create(t.Context(), object(t, kind, name, spec), fieldSet); err != nil {
		t.Fatalf("create %s %s: %v", kind, name, err)
	}
}

func remove(t *testing.T, obj client.Object, name string) {
	t.Helper()
	obj.SetName(name)
	if err := admin.Delete(t.Context(), obj); err != nil {
		t.Fatalf("delete %s: %v", name, err)
	}
}

func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	deadline := time.Now().Add(reaction)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; last seen: %s", what, reaction, problem)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// condition waits until a condition has status and reason and a message with all the words.
func condition(t *testing.T, obj client.Object, name, kind string, truth bool, reason string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s %s=%v %s", name, kind, truth, reason), func() string {
		if err := admin.Get(t.Context(), client.ObjectKey{Name: name}, obj); err != nil {
			return err.Error()
		}
		all := conditions(obj)
		c := meta.FindStatusCondition(all, kind)
		if c == nil || (c.Status == metav1.ConditionTrue) != truth || c.Reason != reason || c.ObservedGeneration != obj.GetGeneration() {
			return fmt.Sprintf("%+v", all)
		}
		for _, word := range words {
			if !strings.Contains(c.Message, word) {
				return fmt.Sprintf("message without %q: %s", word, c.Message)
			}
		}
		return ""
	})
}

func conditions(obj client.Object) []metav1.Condition {
	switch o := obj.(type) {
	case *v1alpha1.Tenant:
		return o.Status.Conditions
	case *v1alpha1.FabricDomain:
		return o.Status.Conditions
	case *v1alpha1.VNIAllocation:
		return o.Status.Conditions
	default:
		return nil
	}
}

func gone(t *testing.T, obj client.Object, name string) {
	t.Helper()
	eventually(t, name+" is gone", func() string {
		err := admin.Get(t.Context(), client.ObjectKey{Name: name}, obj)
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("%v %+v", err, conditions(obj))
	})
}

// nodes writes which nodes use a number, and whether they have released it.
func nodes(t *testing.T, name, list string) error {
	t.Helper()
	allocation := &v1alpha1.VNIAllocation{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return admin.Status().Patch(t.Context(), allocation, client.RawPatch("application/merge-patch+json", []byte(`{"status": {"nodes": `+list+`}}`)))
}

// pass moves the clock on and has the operator look at an allocation, which may be gone by then: the operator sees the clock too
// when it looks for another reason.
func pass(t *testing.T, name string, d time.Duration) {
	t.Helper()
	passive.SetTime(passive.Now().Add(d))
	allocation := &v1alpha1.VNIAllocation{ObjectMeta: metav1.ObjectMeta{Name: name}}
	patch := fmt.Sprintf(`{"metadata": {"annotations": {"looked-at": "%d"}}}`, passive.Now().UnixNano())
	err := admin.Patch(t.Context(), allocation, client.RawPatch("application/merge-patch+json", []byte(patch)))
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

func TestATenantsNumbersFromAllocationToTheEndOfTheirQuarantine(t *testing.T) {
	var tenant v1alpha1.Tenant
	create(t, "Tenant", "a", `{`+selector+`, vni: {mode: PerTenant, count: 2}}`)
	condition(t, &tenant, "a", v1alpha1.ConditionVNIAllocated, false, v1alpha1.ReasonNoFabricDomain, "there is no FabricDomain: create one")
	create(t, "FabricDomain", "hsn", goodDomain)
	condition(t, &tenant, "a", v1alpha1.ConditionVNIAllocated, true, v1alpha1.ReasonAllocated, "1002, 1003")
	condition(t, &tenant, "a", v1alpha1.ConditionReady, false, v1alpha1.ReasonNoNamespace)
	if !slices.Equal(tenant.Status.VNIs, []int32{1002, 1003}) || tenant.Status.FabricDomain != "hsn" {
		t.Errorf("status: %+v", tenant.Status)
	}
	create(t, "Tenant", "b", `{`+selector+`, vni: {count: 3}}`)
	condition(t, &tenant, "b", v1alpha1.ConditionVNIAllocated, false, v1alpha1.ReasonRangeExhausted, "2 of 3 VNIs", "Enlarge spec.vniRange")
	var domain v1alpha1.FabricDomain
	condition(t, &domain, "hsn", v1alpha1.ConditionReady, false, v1alpha1.ReasonRangeExhausted)

	var allocation v1alpha1.VNIAllocation
	condition(t, &allocation, "1002", v1alpha1.ConditionReady, true, v1alpha1.ReasonAllocated, "Tenant a")
	if err := nodes(t, "1002", `[{"name": "n1"}, {"name": "n2", "releasedAt": "2026-01-01T00:00:00Z"}]`); err != nil {
		t.Fatal(err)
	}
	remove(t, &domain, "hsn")
	condition(t, &domain, "hsn", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonDependentsExist, "Tenant a, Tenant b: delete them first")
	remove(t, &tenant, "a")
	condition(t, &tenant, "a", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, "VNI 1002 on n1")
	condition(t, &allocation, "1002", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, "n1")
	condition(t, &allocation, "1003", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined)
	pass(t, "1002", time.Hour)
	pass(t, "1003", 0)
	gone(t, &allocation, "1003")
	condition(t, &allocation, "1002", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonNodesHoldVNI, "n1")

	if err := nodes(t, "1002", `[{"name": "n1", "releasedAt": "2026-01-01T00:00:00Z"}]`); err != nil {
		t.Fatal(err)
	}
	gone(t, &tenant, "a")
	condition(t, &allocation, "1002", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined)
	checkRefusal(t, nodes(t, "1002", `[{"name": "n1"}]`), "can't be in use on a node")
	pass(t, "1002", 599*time.Second)
	time.Sleep(500 * time.Millisecond)
	condition(t, &allocation, "1002", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined)
	pass(t, "1002", 2*time.Second)
	gone(t, &allocation, "1002")

	remove(t, &tenant, "b")
	gone(t, &tenant, "b")
	condition(t, &domain, "hsn", v1alpha1.ConditionDeletionBlocked, true, v1alpha1.ReasonQuarantined, "VNIAllocation 1004, VNIAllocation 1005")
	pass(t, "1004", 601*time.Second)
	pass(t, "1005", 0)
	gone(t, &domain, "hsn")
}

func checkRefusal(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Fatalf("refused: %v", err)
	case want != "" && err == nil:
		t.Fatalf("accepted; want a refusal with %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Fatalf("the refusal does not say %q: %v", want, err)
	}
}

func TestValidation(t *testing.T) {
	const allocation = `{vni: 7, fabricDomainRef: {name: x}, owner: {kind: Tenant, name: a, uid: u}}`
	for title, tc := range map[string]struct{ kind, name, spec, want string }{
		"a domain":                          {"FabricDomain", "x", goodDomain, ""},
		"a range from 0":                    {"FabricDomain", "x", `{vniRange: {first: 0, last: 9}, engineVNI: 1}`, "greater than or equal to 1"},
		"a range past 65535":                {"FabricDomain", "x", `{vniRange: {first: 1, last: 65536}, engineVNI: 1}`, "less than or equal to 65535"},
		"a range that ends before it begin": {"FabricDomain", "x", `{vniRange: {first: 9, last: 1}, engineVNI: 5}`, "first must not be greater"},
		"a reserved number outside":         {"FabricDomain", "x", `{vniRange: {first: 5, last: 9}, engineVNI: 5, reserved: [10]}`, "reserved numbers must be inside"},
		"the engines' number outside":       {"FabricDomain", "x", `{vniRange: {first: 5, last: 9}, engineVNI: 4}`, "engineVNI must be inside"},
		"no quarantine":                     {"FabricDomain", "x", `{vniRange: {first: 5, last: 9}, engineVNI: 5, quarantineSeconds: 0}`, "greater than or equal to 1"},
		"a tenant":                          {"Tenant", "x", `{` + selector + `}`, ""},
		"PerClaim, which is not built":      {"Tenant", "x", `{` + selector + `, vni: {mode: PerClaim}}`, `supported values: "PerTenant", "None"`},
		"five numbers":                      {"Tenant", "x", `{` + selector + `, vni: {count: 5}}`, "less than or equal to 4"},
		"an empty selector":                 {"Tenant", "x", `{namespaceSelector: {}}`, "would select every namespace"},
		"an allocation":                     {"VNIAllocation", "7", allocation, ""},
		"an allocation of another name":     {"VNIAllocation", "8", allocation, "must be the number in spec.vni"},
	} {
		t.Run(title, func(t *testing.T) {
			checkRefusal(t, admin.Create(t.Context(), object(t, tc.kind, tc.name, tc.spec), client.DryRunAll, fieldSet), tc.want)
		})
	}
}

func TestValidationOnChange(t *testing.T) {
	create(t, "FabricDomain", "change", `{vniRange: {first: 2000, last: 2009}, engineVNI: 2000, quarantineSeconds: 1}`)
	create(t, "Tenant", "change", `{`+selector+`, fabricDomainRef: {name: change}, vni: {count: 2}}`)
	for title, tc := range map[string]struct{ kind, patch, want string }{
		"a range can grow":              {"FabricDomain", `{"vniRange": {"last": 2010}}`, ""},
		"a range can't shrink":          {"FabricDomain", `{"vniRange": {"last": 2008}}`, "vniRange can only grow"},
		"the engines' number stays":     {"FabricDomain", `{"engineVNI": 2001}`, "engineVNI is immutable"},
		"the quarantine can change":     {"FabricDomain", `{"quarantineSeconds": 900}`, ""},
		"VNIs can't be given up":        {"Tenant", `{"vni": {"mode": "None"}}`, "mode can't change to None"},
		"a count can grow":              {"Tenant", `{"vni": {"count": 3}}`, ""},
		"a count can't shrink":          {"Tenant", `{"vni": {"count": 1}}`, "count can only grow"},
		"a tenant's domain stays":       {"Tenant", `{"fabricDomainRef": {"name": "other"}}`, "fabricDomainRef is immutable"},
		"a tenant's domain can't leave": {"Tenant", `{"fabricDomainRef": null}`, "fabricDomainRef is immutable"},
	} {
		t.Run(title, func(t *testing.T) {
			patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec": `+tc.patch+`}`))
			checkRefusal(t, admin.Patch(t.Context(), object(t, tc.kind, "change", "{}"), patch, client.DryRunAll), tc.want)
		})
	}
}
