package manifest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

// Directories inside the container of an engine.
const (
	configDir = "/etc/weir"
	dataDir   = "/var/lib/weir"
)

// mebibyte is the unit of target sizes: media are allocated in whole mebibytes.
const mebibyte = 1 << 20

// TargetBytes is the storage of one target, in whole mebibytes.
func TargetBytes(c *v1alpha1.StorageCluster) int64 {
	share := c.Spec.Storage.Size.Value() / int64(max(1, c.Spec.Engines.TargetsPerEngine))
	return share / mebibyte * mebibyte
}

// EngineConfig writes the configuration file of the engines. Rank and host differ between engines and come from the
// environment (WEIR_RANK, WEIR_HOST).
func EngineConfig(c *v1alpha1.StorageCluster) string {
	var b strings.Builder
	b.WriteString(StartConfig(c))
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, e := range attachEngines(c) {
		line("")
		line("[[engines]]")
		line("rank = %d", e.Rank)
		line("host = %s", strconv.Quote(e.Host))
		line("fabric_port = %d", e.FabricPort)
		line("targets = %d", e.Targets)
		line("management = %s", strconv.Quote(e.Management))
	}
	return b.String()
}

// StartConfig is the part of the configuration that an engine has to be restarted for. Of engines that are added it learns from
// them, and certificates it reads again by itself.
func StartConfig(c *v1alpha1.StorageCluster) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("system = %s", strconv.Quote(c.Name))
	line("provider = %s", strconv.Quote(c.Spec.Fabric.Provider))
	line("fabric_port = %d", c.Spec.Ports.Fabric)
	if block := c.Spec.Fabric.VNIBlock; block != nil && c.Spec.Fabric.HasVNIs() {
		line("fabric_auth_key = \"0:%d:%d\"", block.First, block.Last)
	}
	line("targets = %d", c.Spec.Engines.TargetsPerEngine)
	line("management_listen = \"0.0.0.0:%d\"", c.Spec.Ports.Management)
	line("metrics_listen = \"0.0.0.0:%d\"", c.Spec.Ports.Metrics)
	line("data = %s", strconv.Quote(dataDir))
	line("target_size = \"%dMiB\"", TargetBytes(c)/mebibyte)
	line("log = %s", strconv.Quote(c.Spec.Engines.LogLevel))
	line("")
	line("[tls]")
	line("ca = \"%s/tls/%s\"", configDir, KeyCA)
	line("cert = \"%s/tls/%s\"", configDir, KeyCert)
	line("key = \"%s/tls/%s\"", configDir, KeyPrivate)
	line("")
	line("[auth]")
	line("system_key = \"%s/auth/%s\"", configDir, KeySystemKey)
	line("engine_key = \"%s/auth/%s\"", configDir, KeyEngineKey)
	return b.String()
}

// ConfigMap holds the configuration file of the engines.
func ConfigMap(c *v1alpha1.StorageCluster) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: Meta(c, EnginesName(c.Name)),
		Data:       map[string]string{KeyConfig: EngineConfig(c)},
	}
}

// Attach is the attach file of clients: all that a client needs to reach the system.
type Attach struct {
	System        string         `json:"system"`
	Provider      string         `json:"provider"`
	Engines       []AttachEngine `json:"engines"`
	SystemKeyFile string         `json:"system_key_file,omitempty"`
	// Tenant is the number of the clients' tenant; 0 is the system.
	Tenant        int64     `json:"tenant,omitempty"`
	TenantKeyFile string    `json:"tenant_key_file,omitempty"`
	TLS           AttachTLS `json:"tls"`
}

// AttachEngine is the address of one engine.
type AttachEngine struct {
	Rank int32  `json:"rank"`
	Host string `json:"host"`
	// FabricPort is the port of target 0; target t listens on FabricPort + t.
	FabricPort int32 `json:"fabric_port"`
	Targets    int32 `json:"targets"`
	// Management is host:port of the management service.
	Management string `json:"management"`
}

// AttachTLS names the PEM files that a client proves itself with.
type AttachTLS struct {
	CA   string `json:"ca"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
}

// AttachFile writes the attach file of clients. It names the other keys of its Secret, which begin with prefix, relative to
// itself, so that the Secret may be mounted anywhere.
func AttachFile(c *v1alpha1.StorageCluster, prefix string) ([]byte, error) {
	attach := attachment(c, prefix)
	attach.SystemKeyFile = prefix + KeySystemKey
	return attach.encode(c)
}

// TenantFile is the attach file of a tenant's clients: it names the tenant's key and nothing of the system's.
func TenantFile(c *v1alpha1.StorageCluster, number int64) ([]byte, error) {
	attach := attachment(c, "")
	attach.Tenant, attach.TenantKeyFile = number, KeyTenantKey
	return attach.encode(c)
}

// ManagementFile is an attach file that leads to the engines' management alone: it names no key of the data path.
func ManagementFile(c *v1alpha1.StorageCluster) ([]byte, error) {
	return attachment(c, "").encode(c)
}

func attachment(c *v1alpha1.StorageCluster, prefix string) *Attach {
	return &Attach{
		System:   c.Name,
		Provider: c.Spec.Fabric.Provider,
		Engines:  attachEngines(c),
		TLS: AttachTLS{
			CA:   prefix + KeyCA,
			Cert: prefix + KeyCert,
			Key:  prefix + KeyPrivate,
		},
	}
}

func (a *Attach) encode(c *v1alpha1.StorageCluster) ([]byte, error) {
	file, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write attach file of StorageCluster %s/%s: %w", c.Namespace, c.Name, err)
	}
	return append(file, '\n'), nil
}

func attachEngines(c *v1alpha1.StorageCluster) []AttachEngine {
	engines := make([]AttachEngine, 0, c.Spec.Engines.Replicas)
	for rank := range c.Spec.Engines.Replicas {
		host := Host(c, rank)
		engines = append(engines, AttachEngine{
			Rank:       rank,
			Host:       host,
			FabricPort: c.Spec.Ports.Fabric,
			Targets:    c.Spec.Engines.TargetsPerEngine,
			Management: fmt.Sprintf("%s:%d", host, c.Spec.Ports.Management),
		})
	}
	return engines
}
