package v1alpha1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// inherited are fields whose schema is Kubernetes' own.
var inherited = map[string]bool{
	"metadata": true, "conditions": true, "resources": true, "tolerations": true, "seccompProfile": true,
	"namespaceSelector": true, "selector": true,
}

// TestConventions holds the CRDs to the API conventions that keep them readable and CEL cheap: every field is described,
// starting with its name; every string, list and map has a limit; no phase; status is a subresource with conditions that
// are keyed by type.
func TestConventions(t *testing.T) {
	paths, err := filepath.Glob("../../../charts/weir/files/crds/*.yaml")
	if err != nil || len(paths) != 7 {
		t.Fatalf("CRDs: %v %v", paths, err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		t.Run(crd.Spec.Names.Kind, func(t *testing.T) {
			checkKind(t, &crd)
		})
	}
}

func checkKind(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	version := crd.Spec.Versions[0]
	if version.Subresources == nil || version.Subresources.Status == nil {
		t.Error("status is no subresource")
	}
	if crd.Annotations["helm.sh/resource-policy"] != "keep" {
		t.Error("uninstalling the chart would delete every object")
	}
	root := version.Schema.OpenAPIV3Schema
	conditions := root.Properties["status"].Properties["conditions"]
	if conditions.XListType == nil || *conditions.XListType != "map" || len(conditions.XListMapKeys) != 1 || conditions.XListMapKeys[0] != "type" {
		t.Error("conditions are not a map by type")
	}
	for _, problem := range append(lint("spec", root.Properties["spec"]), lint("status", root.Properties["status"])...) {
		t.Error(problem)
	}
	columns := map[string]bool{}
	for _, c := range version.AdditionalPrinterColumns {
		columns[c.Name] = true
	}
	if !columns["Ready"] || !columns["Reason"] || !columns["Age"] {
		t.Errorf("printer columns: %v", columns)
	}
}

// lint returns what is wrong with the fields below a path.
func lint(path string, schema apiextensionsv1.JSONSchemaProps) []string {
	var problems []string
	for name, field := range schema.Properties {
		at := path + "." + name
		if inherited[name] {
			continue
		}
		if name == "phase" {
			problems = append(problems, at+": conditions say more than a phase")
		}
		if !strings.HasPrefix(field.Description, name+" ") && !strings.HasPrefix(field.Description, name+",") {
			problems = append(problems, fmt.Sprintf("%s: the description does not start with the field's name: %q", at, field.Description))
		}
		problems = append(problems, limits(at, field)...)
		problems = append(problems, lint(at, field)...)
	}
	return problems
}

func limits(at string, field apiextensionsv1.JSONSchemaProps) []string {
	quantity := field.XIntOrString
	switch {
	case field.Type == "string" && field.MaxLength == nil && len(field.Enum) == 0 && field.Format != "date-time" && !quantity:
		return []string{at + ": a string without maxLength"}
	case field.Type == "array" && (field.MaxItems == nil || field.XListType == nil):
		return []string{at + ": a list without maxItems or listType"}
	case field.Type == "array" && field.Items.Schema.Type == "object":
		return lint(at+"[]", *field.Items.Schema)
	case field.AdditionalProperties != nil && field.MaxProperties == nil:
		return []string{at + ": a map without maxProperties"}
	case field.Type == "integer" && field.Format == "" && field.Maximum == nil:
		return []string{at + ": an integer without format or maximum"}
	default:
		return nil
	}
}
