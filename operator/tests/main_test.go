// Package tests runs the operator's controllers against a real kube-apiserver and etcd, under the RBAC rules that the
// chart installs, with engines that speak the real management protocol over mutual TLS.
package tests

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"weir.dev/weir/operator/internal/assembly"
)

const (
	// chartFiles is where the chart's generated files are.
	chartFiles = "../../charts/weir/files/"
	// rolePrefix keeps the roles of these tests apart from those of a chart that a test installs.
	rolePrefix = "test-"
)

var (
	// environment is the API server with its etcd.
	environment *envtest.Environment
	// adminConfig may do everything.
	adminConfig *rest.Config
	// admin is a client that reads past any cache.
	admin client.Client
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(childSettings); settings != "" {
		if err := runChild(settings); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
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
	environment = &envtest.Environment{CRDDirectoryPaths: []string{chartFiles + "crds"}, ErrorIfCRDPathMissing: true}
	config, err := environment.Start()
	if err != nil {
		return 0, fmt.Errorf("start kube-apiserver and etcd: %w", err)
	}
	defer func() { _ = environment.Stop() }()
	adminConfig = config
	adminConfig.QPS, adminConfig.Burst = -1, 0
	scheme, err := assembly.NewScheme()
	if err != nil {
		return 0, err
	}
	if admin, err = client.New(adminConfig, client.Options{Scheme: scheme}); err != nil {
		return 0, fmt.Errorf("make a client: %w", err)
	}
	if err := installRoles(context.Background()); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// installRoles installs the ClusterRoles that the chart gives the operator and the agent of drives.
func installRoles(ctx context.Context) error {
	for _, name := range []string{"rbac/namespaced/role.yaml", "rbac/cluster/role.yaml", "rbac/drives/role.yaml", "rbac/claims/role.yaml"} {
		text, err := os.ReadFile(chartFiles + name)
		if err != nil {
			return fmt.Errorf("read the operator's role: %w", err)
		}
		var role rbacv1.ClusterRole
		if err := yaml.UnmarshalStrict(text, &role); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		role.Name = rolePrefix + role.Name
		if err := admin.Create(ctx, &role); err != nil {
			return fmt.Errorf("create ClusterRole %s: %w", role.Name, err)
		}
	}
	return nil
}
