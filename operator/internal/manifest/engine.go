package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
)

const (
	// annotationFingerprint on a pod changes with what the engine reads at its start only.
	annotationFingerprint = "storage.weir.dev/configuration"
	// AnnotationSeals on a StatefulSet tells by which key the engine seals requests to others.
	AnnotationSeals = "storage.weir.dev/seals"
	// AnnotationTemplate on a StatefulSet tells whether its pod template is the one the spec asks for.
	AnnotationTemplate = "storage.weir.dev/template"
	// fingerprintBytes of SHA-256 are plenty to tell configurations apart.
	fingerprintBytes = 12
	// eraseAttempts before a Job that erases data gives up.
	eraseAttempts = 3
)

// Fingerprint is a short digest of its parts.
func Fingerprint(parts ...[]byte) string {
	h := sha256.New()
	for _, part := range parts {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)[:fingerprintBytes])
}

// Complete returns a copy of the cluster in which image and seccomp profile are set: where the spec leaves them open, to
// those that the operator was installed with. An empty profile stands for the container runtime's.
func Complete(c *v1alpha1.StorageCluster, image, seccompProfile string) *v1alpha1.StorageCluster {
	complete := c.DeepCopy()
	if complete.Spec.Image == "" {
		complete.Spec.Image = image
	}
	engines := &complete.Spec.Engines
	switch {
	case engines.SeccompProfile != nil:
	case seccompProfile == "":
		engines.SeccompProfile = runtimeDefault()
	default:
		engines.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &seccompProfile}
	}
	return complete
}

func runtimeDefault() *corev1.SeccompProfile {
	return &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
}

// StatefulSet runs the engine of a rank of a complete cluster. node is where its data is; empty when the data is in a claim that the
// scheduler follows. env is what it has in its environment beside its own.
func StatefulSet(c *v1alpha1.StorageCluster, rank int32, node, fingerprint string, env ...corev1.EnvVar) (*appsv1.StatefulSet, error) {
	template := podTemplate(c, rank, node, fingerprint)
	engine := &template.Spec.Containers[0]
	engine.Env = append(engine.Env, env...)
	encoded, err := json.Marshal(template)
	if err != nil {
		return nil, fmt.Errorf("encode pod template of rank %d of StorageCluster %s/%s: %w", rank, c.Namespace, c.Name, err)
	}
	meta := Meta(c, EngineName(c.Name, rank))
	meta.Labels = engineLabels(c.Name, rank)
	meta.Annotations = map[string]string{AnnotationTemplate: Fingerprint(encoded)}
	selector := EngineSelector(c.Name)
	selector[v1alpha1.LabelRank] = fmt.Sprintf("%d", rank)
	set := &appsv1.StatefulSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"},
		ObjectMeta: meta,
		Spec: appsv1.StatefulSetSpec{
			Replicas:    new(int32(1)),
			ServiceName: EnginesName(c.Name),
			Selector:    &metav1.LabelSelector{MatchLabels: selector},
			Template:    template,
			// Parallel lets a new template replace a pod that never became ready.
			PodManagementPolicy:                  appsv1.ParallelPodManagement,
			UpdateStrategy:                       appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
			RevisionHistoryLimit:                 new(int32(2)),
			PersistentVolumeClaimRetentionPolicy: ClaimRetention(c),
		},
	}
	if claim := c.Spec.Storage.VolumeClaimTemplate; claim != nil {
		set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
			ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: engineLabels(c.Name, rank)},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				StorageClassName: claim.StorageClassName,
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: c.Spec.Storage.Size},
				},
			},
		}}
	}
	return set, nil
}

// ClaimRetention says what becomes of an engine's claim when its StatefulSet goes.
func ClaimRetention(c *v1alpha1.StorageCluster) *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy {
	whenDeleted := appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if c.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		whenDeleted = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	return &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
		WhenDeleted: whenDeleted,
		WhenScaled:  appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	}
}

// EraseJob erases the directory of a rank of a complete cluster on its node. The engine's user empties it, so that nothing goes that the
// engine did not write or could not have removed. The directory itself is in one of root's, which only root may change, without a capability.
func EraseJob(c *v1alpha1.StorageCluster, rank int32, node string) *batchv1.Job {
	const content, parent = "/content", "/data"
	asEngine, asRoot := confined(), confined()
	asEngine.RunAsNonRoot, asEngine.RunAsUser, asEngine.RunAsGroup = new(true), new(int64(engineUser)), new(int64(engineUser))
	asRoot.RunAsUser = new(int64(0))
	container := func(name, volume, path string, security *corev1.SecurityContext, command ...string) corev1.Container {
		return corev1.Container{
			Name:                     name,
			Image:                    c.Spec.Image,
			ImagePullPolicy:          corev1.PullIfNotPresent,
			Command:                  command,
			VolumeMounts:             []corev1.VolumeMount{{Name: volume, MountPath: path}},
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			SecurityContext:          security,
		}
	}
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: Meta(c, EraseName(c.Name, rank)),
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(eraseAttempts)),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: Labels(c.Name)},
				Spec: corev1.PodSpec{
					RestartPolicy:                corev1.RestartPolicyNever,
					AutomountServiceAccountToken: new(false),
					EnableServiceLinks:           new(false),
					Affinity:                     &corev1.Affinity{NodeAffinity: pinned(node)},
					Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
					SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: runtimeDefault()},
					Volumes: []corev1.Volume{
						hostDir("content", DataPath(c, rank), corev1.HostPathDirectoryOrCreate),
						hostDir("data", clusterPath(c), corev1.HostPathDirectoryOrCreate),
					},
					InitContainers: []corev1.Container{container("empty", "content", content, asEngine, "find", content, "-mindepth", "1", "-delete")},
					Containers:     []corev1.Container{container("erase", "data", parent, asRoot, "rm", "-d", "-f", fmt.Sprintf("%s/rank-%d", parent, rank))},
				},
			},
		},
	}
}
