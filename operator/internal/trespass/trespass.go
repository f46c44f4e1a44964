// Package trespass has a pod of a tenant try to reach what is another tenant's, and says what came of it.
package trespass

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"weir.dev/weir/operator/api/v1alpha1"
	"weir.dev/weir/operator/internal/manifest"
)

const (
	// JobName of the attempts, in a namespace of the tenant.
	JobName = "weir-trespass"
	// envOther holds the number of the tenant whose storage is tried.
	envOther = "OTHER_TENANT"
	// user of the pod: nobody's.
	user = 65532
	// deadlineSeconds of the attempts: a pod waits for its image, its VNI and three answers.
	deadlineSeconds = 300
	// keptSeconds is how long an ended Job stays. Attempts that prove nothing are made again after that.
	keptSeconds = 600
	secretDir   = "/etc/weir/client"
	scratchDir  = "/attempt"
	// wordsMax is how long what is said of an attempt may be, as in an IsolationProof.
	wordsMax = 256
)

// Numbers that engines answer with (engine/proto/src/der.rs).
const (
	derOK           = 0
	derNoPermission = -1001
	derNonexistent  = -1005
)

// script makes the attempts, and writes the number that came of each where the kubelet reads it.
//
//go:embed trespass.sh
var script string

// Target is a container of another tenant. It goes by UUIDs and a number, so that the tenant who tries learns no names.
type Target struct {
	// Cluster is the name of the StorageCluster that the container is in.
	Cluster string
	// Pool and Container are UUIDs.
	Pool, Container string
	// Tenant is the number of the tenant that has them.
	Tenant int64
}

// Job has a pod in a namespace of a tenant try to reach a target, with the Secret that the tenant's programs have.
func Job(image string, tenant *v1alpha1.Tenant, namespace string, target Target) *batchv1.Job {
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: JobName,
			Labels: map[string]string{v1alpha1.LabelTenant: string(tenant.UID), manifest.LabelManagedBy: manifest.ManagedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Tenant", Name: tenant.Name, UID: tenant.UID, Controller: new(true),
			}},
		},
		Spec: batchv1.JobSpec{
			BackoffLimit:            new(int32(0)),
			ActiveDeadlineSeconds:   new(int64(deadlineSeconds)),
			TTLSecondsAfterFinished: new(int32(keptSeconds)),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy:                corev1.RestartPolicyNever,
				AutomountServiceAccountToken: new(false),
				EnableServiceLinks:           new(false),
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Containers: []corev1.Container{container(image, target)},
				Volumes: []corev1.Volume{
					{Name: "client", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
						SecretName: manifest.TenantName(target.Cluster), DefaultMode: new(int32(0o440)),
					}}},
					{Name: "attempt", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				},
			}},
		},
	}
}

func container(image string, target Target) corev1.Container {
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(100, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(256<<20, resource.BinarySI),
	}
	return corev1.Container{
		Name:            "attempt",
		Image:           image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"bash", "-c", script},
		Env: []corev1.EnvVar{
			{Name: "SECRET", Value: secretDir},
			{Name: "SCRATCH", Value: scratchDir},
			{Name: "POOL", Value: target.Pool},
			{Name: "CONTAINER", Value: target.Container},
			{Name: envOther, Value: strconv.FormatInt(target.Tenant, 10)},
		},
		Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "client", MountPath: secretDir, ReadOnly: true},
			{Name: "attempt", MountPath: scratchDir},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			ReadOnlyRootFilesystem:   new(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// Other is the number of the tenant whose storage a Job tries to reach.
func Other(job *batchv1.Job) (int64, error) {
	for _, container := range job.Spec.Template.Spec.Containers {
		for _, variable := range container.Env {
			if variable.Name == envOther {
				return strconv.ParseInt(variable.Value, 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("job %s/%s does not say whose storage it tries to reach", job.Namespace, job.Name)
}

// Read says what came of the attempts from the message of the container that made them: who is the tenant whose storage they tried to
// reach. It fails when they prove nothing, such as when no engine answered.
func Read(message, who string) (refused, reached []string, err error) {
	var own, key, number int
	if _, err := fmt.Sscanf(message, "own %d\nkey %d\nnumber %d\n", &own, &key, &number); err != nil {
		return nil, nil, fmt.Errorf("the attempts were not made: %q", strings.TrimSpace(message))
	}
	if own != derNonexistent {
		return nil, nil, fmt.Errorf("engines don't know the tenant by its own key: they answer %d", own)
	}
	judge := func(what string, answer int, through ...int) {
		what = what[:min(len(what), wordsMax)]
		switch {
		case answer == derNoPermission:
			refused = append(refused, what)
		case slices.Contains(through, answer):
			reached = append(reached, what)
		default:
			err = fmt.Errorf("%s: the answer was %d, which proves nothing", what, answer)
		}
	}
	judge(fmt.Sprintf("a container of %s with the key of this tenant", who), key, derOK)
	// Who is believed to be the other tenant is told whether there is such a container.
	judge(fmt.Sprintf("a container of %s under its number with the key of this tenant", who), number, derOK, derNonexistent)
	if len(reached) > 0 {
		return refused, reached, nil
	}
	return refused, reached, err
}
