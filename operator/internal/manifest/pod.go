package manifest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/drive"
)

const (
	// engineUser is the numeric user and group of engines. Data directories belong to it.
	engineUser = drive.EngineUser
	// EngineContainer is the name of the engine's container.
	EngineContainer = "engine"
	// stopSeconds is what an engine may take for its last checkpoint; without one it recovers from its log.
	stopSeconds = 60
	// startupSeconds is what a start may take: replaying a full write-ahead log on a slow disk.
	startupSeconds = 600
	// probeSeconds is the period of probes.
	probeSeconds = 5
	// livenessFailures in a row, 30 s, restart an engine that has stopped answering.
	livenessFailures = 6
)

// podTemplate is the pod of the engine of a rank. fingerprint changes whenever something that the engine reads only at
// its start changes.
func podTemplate(c *v1alpha1.StorageCluster, rank int32, node, fingerprint string) corev1.PodTemplateSpec {
	spec := corev1.PodSpec{
		Containers:                    []corev1.Container{engineContainer(c, rank)},
		Volumes:                       engineVolumes(c, rank),
		Affinity:                      affinity(c, node),
		NodeSelector:                  c.Spec.Engines.NodeSelector,
		Tolerations:                   c.Spec.Engines.Tolerations,
		TerminationGracePeriodSeconds: new(int64(stopSeconds)),
		AutomountServiceAccountToken:  new(false),
		EnableServiceLinks:            new(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:        new(true),
			RunAsUser:           new(int64(engineUser)),
			RunAsGroup:          new(int64(engineUser)),
			FSGroup:             new(int64(engineUser)),
			FSGroupChangePolicy: new(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      c.Spec.Engines.SeccompProfile,
		},
	}
	if devices := c.Spec.Storage.Devices; devices != nil && devices.DeviceClass != "" {
		spec.ResourceClaims = []corev1.PodResourceClaim{{Name: drivesClaim, ResourceClaimTemplateName: new(DrivesName(c.Name, rank))}}
	}
	if OnNode(c) {
		spec.InitContainers = []corev1.Container{ownDataContainer(c.Spec.Image)}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{
			Labels: engineLabels(c.Name, rank),
			Annotations: map[string]string{
				annotationFingerprint:  fingerprint,
				"prometheus.io/scrape": "true",
				"prometheus.io/port":   fmt.Sprintf("%d", c.Spec.Ports.Metrics),
				"prometheus.io/path":   "/metrics",
			},
		},
		Spec: spec,
	}
}

func engineContainer(c *v1alpha1.StorageCluster, rank int32) corev1.Container {
	probe := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("metrics"), Scheme: corev1.URISchemeHTTP}}
	}
	mounts := []corev1.VolumeMount{
		{Name: "config", MountPath: configDir, ReadOnly: true},
		{Name: "data", MountPath: dataDir},
		{Name: "scratch", MountPath: "/tmp"},
	}
	if c.Spec.Fabric.Provider == "shm" {
		mounts = append(mounts, corev1.VolumeMount{Name: "shm", MountPath: "/dev/shm"})
	}
	container := corev1.Container{
		Name:            EngineContainer,
		Image:           c.Spec.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"weir-engine"},
		Args:            []string{"--config", configDir + "/" + KeyConfig},
		Env: []corev1.EnvVar{
			{Name: "WEIR_RANK", Value: fmt.Sprintf("%d", rank)},
			{Name: "WEIR_HOST", Value: Host(c, rank)},
		},
		Ports: []corev1.ContainerPort{
			{Name: "fabric", ContainerPort: c.Spec.Ports.Fabric, Protocol: corev1.ProtocolTCP},
			{Name: "management", ContainerPort: c.Spec.Ports.Management, Protocol: corev1.ProtocolTCP},
			{Name: "metrics", ContainerPort: c.Spec.Ports.Metrics, Protocol: corev1.ProtocolTCP},
		},
		Resources:    c.Spec.Engines.Resources,
		VolumeMounts: mounts,
		StartupProbe: &corev1.Probe{
			ProbeHandler: probe("/healthz"), PeriodSeconds: 1, TimeoutSeconds: probeSeconds, SuccessThreshold: 1, FailureThreshold: startupSeconds,
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler: probe("/readyz"), PeriodSeconds: probeSeconds, TimeoutSeconds: probeSeconds, SuccessThreshold: 1, FailureThreshold: 2,
		},
		LivenessProbe: &corev1.Probe{
			ProbeHandler: probe("/healthz"), PeriodSeconds: probeSeconds, TimeoutSeconds: probeSeconds, SuccessThreshold: 1, FailureThreshold: livenessFailures,
		},
		// The end of the log goes into the StorageCluster's status when an engine refuses to start.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext:          confined(),
	}
	if c.Spec.Storage.Devices != nil {
		addDrives(c, rank, &container)
	}
	return container
}

// addDrives has an engine ask for its drives, and use them.
func addDrives(c *v1alpha1.StorageCluster, rank int32, container *corev1.Container) {
	resources := container.Resources.DeepCopy()
	if c.Spec.Storage.Devices.DeviceClass != "" {
		resources.Claims = append(resources.Claims, corev1.ResourceClaim{Name: drivesClaim})
	} else {
		if resources.Limits == nil {
			resources.Limits = corev1.ResourceList{}
		}
		name := corev1.ResourceName(drive.Resource(c.Namespace, c.Name, rank))
		resources.Limits[name] = *resource.NewQuantity(int64(c.Spec.Storage.Devices.Count), resource.DecimalSI)
	}
	container.Resources = *resources
	paths := make([]string, 0, c.Spec.Engines.TargetsPerEngine)
	for target := range c.Spec.Engines.TargetsPerEngine {
		paths = append(paths, drive.ContainerPath(target))
	}
	container.Env = append(container.Env, corev1.EnvVar{Name: "WEIR_DEVICES", Value: strings.Join(paths, ",")})
}

// confined is the security context of a container that needs no privilege.
func confined(capabilities ...corev1.Capability) *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: capabilities},
	}
}

// ownDataContainer gives the engine's user the data directory that the kubelet made for root. It runs as root with
// the one capability it needs; the engine itself has none.
func ownDataContainer(image string) corev1.Container {
	security := confined("CHOWN")
	security.RunAsNonRoot = new(false)
	security.RunAsUser = new(int64(0))
	return corev1.Container{
		Name:            "own-data",
		Image:           image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"chown", fmt.Sprintf("%d:%d", engineUser, engineUser), dataDir},
		VolumeMounts:    []corev1.VolumeMount{{Name: "data", MountPath: dataDir}},
		SecurityContext: security,
	}
}

func engineVolumes(c *v1alpha1.StorageCluster, rank int32) []corev1.Volume {
	keys := func(prefix string, names ...string) []corev1.KeyToPath {
		items := make([]corev1.KeyToPath, 0, len(names))
		for _, name := range names {
			items = append(items, corev1.KeyToPath{Key: name, Path: prefix + name})
		}
		return items
	}
	secret := func(name string, items []corev1.KeyToPath) corev1.VolumeProjection {
		return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items,
		}}
	}
	volumes := []corev1.Volume{
		{Name: "config", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			DefaultMode: new(int32(0o440)),
			Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{
					LocalObjectReference: corev1.LocalObjectReference{Name: EnginesName(c.Name)}, Items: keys("", KeyConfig),
				}},
				secret(EngineTLSName(c.Name), keys("tls/", KeyCA, KeyCert, KeyPrivate)),
				secret(AuthName(c.Name), keys("auth/", KeySystemKey)),
				secret(EngineAuthName(c.Name), keys("auth/", KeyEngineKey)),
			},
		}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	if OnNode(c) {
		volumes = append(volumes, hostDir("data", DataPath(c, rank), corev1.HostPathDirectoryOrCreate))
	}
	if c.Spec.Fabric.Provider == "shm" {
		volumes = append(volumes, hostDir("shm", "/dev/shm", corev1.HostPathDirectory))
	}
	return volumes
}

func hostDir(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path, Type: new(kind)},
	}}
}

// OnNode tells whether engines keep something in a directory of their node, and so always run there.
func OnNode(c *v1alpha1.StorageCluster) bool {
	return c.Spec.Storage.HostPath != nil || c.Spec.Storage.Devices != nil
}

// hostPath is the directory of a node below which engines keep their data, or what they know of their drives.
func hostPath(c *v1alpha1.StorageCluster) string {
	if devices := c.Spec.Storage.Devices; devices != nil {
		return devices.Path
	}
	return c.Spec.Storage.HostPath.Path
}

// clusterPath is the directory on each node that holds the engines of a cluster. Neither namespaces nor names may
// have a '_', so that no two clusters share one.
func clusterPath(c *v1alpha1.StorageCluster) string {
	return fmt.Sprintf("%s/%s_%s", hostPath(c), c.Namespace, c.Name)
}

// DataPath is the directory on the node that holds the data of a rank.
func DataPath(c *v1alpha1.StorageCluster, rank int32) string {
	return fmt.Sprintf("%s/rank-%d", clusterPath(c), rank)
}

// affinity pins the engine to the node that holds its data, and keeps the engines of a cluster apart.
func affinity(c *v1alpha1.StorageCluster, node string) *corev1.Affinity {
	apart := corev1.PodAffinityTerm{
		LabelSelector: &metav1.LabelSelector{MatchLabels: EngineSelector(c.Name)},
		TopologyKey:   corev1.LabelHostname,
	}
	result := &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
	if c.Spec.Engines.Spread == v1alpha1.SpreadPreferred {
		result.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{
			{Weight: 100, PodAffinityTerm: apart},
		}
	} else {
		result.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{apart}
	}
	if node != "" {
		result.NodeAffinity = pinned(node)
	}
	return result
}

func pinned(node string) *corev1.NodeAffinity {
	return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			},
		}},
	}}
}
