// Package podsecurity asks Kubernetes' own rules whether a namespace of the Pod Security level "restricted" would admit a pod.
package podsecurity

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// Breaches returns what the rules of the level say against a pod, newest version, in their own words: a reason for each rule, and
// what in the pod breaks it.
func Breaches(pod *corev1.PodTemplateSpec) (map[string]string, error) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("make the rules of Pod Security: %w", err)
	}
	level := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	found := map[string]string{}
	for _, result := range evaluator.EvaluatePod(level, &metav1.ObjectMeta{Annotations: pod.Annotations}, &pod.Spec) {
		if !result.Allowed {
			found[result.ForbiddenReason] = result.ForbiddenDetail
		}
	}
	return found, nil
}
