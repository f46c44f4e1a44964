// Command crdreference writes docs/reference/crds.md from the CRDs: every field with its type, limits and meaning.
package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const introduction = `# Kinds of storage.weir.dev/v1alpha1

Written by ` + "`operator/generate.sh`" + ` from the types in ` + "`operator/api/v1alpha1`" + `; change those. A field marked * is required.
Conditions carry the generation that they were computed from, so that ` + "`kubectl wait --for=condition=Ready`" + ` works on
every kind. Their reasons are constants in ` + "`operator/api/v1alpha1/conditions.go`" + `.
`

// cell escapes what a table cell can't hold.
var cell = strings.NewReplacer("|", "\\|", "<", "&lt;")

// opaque are fields of Kubernetes' own types, which its documentation describes.
var opaque = map[string]bool{"resources": true, "tolerations": true, "seccompProfile": true, "conditions": true, "namespaceSelector": true}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "crdreference:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, paths []string) error {
	if len(paths) == 0 {
		return errors.New("name the files of the CRDs")
	}
	var b strings.Builder
	b.WriteString(introduction)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read CRD: %w", err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return fmt.Errorf("read CRD %s: %w", path, err)
		}
		kind(&b, &crd)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func kind(b *strings.Builder, crd *apiextensionsv1.CustomResourceDefinition) {
	names := crd.Spec.Names
	root := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	fmt.Fprintf(b, "\n## %s\n\n%s Short name: `%s`.\n", names.Kind, oneLine(root.Description), strings.Join(names.ShortNames, "`, `"))
	rules(b, "the object", root.XValidations)
	for _, part := range []string{"spec", "status"} {
		fmt.Fprintf(b, "\n| %s | type | meaning |\n|---|---|---|\n", part)
		fields(b, "", root.Properties[part])
	}
	spec := root.Properties["spec"]
	var all apiextensionsv1.ValidationRules
	collect(&all, spec)
	rules(b, "spec", all)
}

// fields writes a row for each field, those of objects after the object.
func fields(b *strings.Builder, prefix string, schema apiextensionsv1.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		mark := ""
		if slices.Contains(schema.Required, name) {
			mark = " *"
		}
		meaning := oneLine(field.Description)
		if field.Default != nil && string(field.Default.Raw) != "{}" {
			meaning += fmt.Sprintf(" Default: `%s`.", strings.Trim(string(field.Default.Raw), `"`))
		}
		fmt.Fprintf(b, "| `%s%s`%s | %s | %s |\n", prefix, name, mark, typeOf(field), cell.Replace(meaning))
		switch {
		case opaque[name]:
		case field.Type == "array" && field.Items.Schema.Type == "object":
			fields(b, prefix+name+"[].", *field.Items.Schema)
		case field.Type == "object":
			fields(b, prefix+name+".", field)
		}
	}
}

func typeOf(field apiextensionsv1.JSONSchemaProps) string {
	switch {
	case field.XIntOrString:
		return "quantity"
	case len(field.Enum) > 0:
		var words []string
		for _, value := range field.Enum {
			words = append(words, strings.Trim(string(value.Raw), `"`))
		}
		return strings.Join(words, ", ")
	case field.Type == "array":
		return "list of " + typeOf(*field.Items.Schema)
	case field.AdditionalProperties != nil:
		return "map of " + typeOf(*field.AdditionalProperties.Schema)
	case field.Type == "integer" && field.Minimum != nil && field.Maximum != nil:
		return fmt.Sprintf("%.0f … %.0f", *field.Minimum, *field.Maximum)
	default:
		return field.Type
	}
}

// collect gathers the rules of a schema and of all below it.
func collect(into *apiextensionsv1.ValidationRules, schema apiextensionsv1.JSONSchemaProps) {
	*into = append(*into, schema.XValidations...)
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		if !opaque[name] {
			collect(into, schema.Properties[name])
		}
	}
}

func rules(b *strings.Builder, of string, all apiextensionsv1.ValidationRules) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "\nThe API server refuses %s with:\n\n", of)
	for _, rule := range all {
		fmt.Fprintf(b, "- %s\n", rule.Message)
	}
}

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if text != "" && !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text
}
