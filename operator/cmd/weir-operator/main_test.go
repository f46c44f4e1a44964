package main

import (
	"slices"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	good := []string{"--namespace=weir-system", "--engine-image=weir/engine:1"}
	tests := map[string]struct {
		args []string
		// want is in the error; none means that the arguments are good.
		want string
	}{
		"namespace and image are enough":     {good, ""},
		"without a namespace it says so":     {good[1:], "POD_NAMESPACE"},
		"without an image it says so":        {good[:1], "WEIR_ENGINE_IMAGE"},
		"an argument is none of its flags":   {append(slices.Clone(good), "go"), `unexpected argument "go"`},
		"without workers it says so":         {append(slices.Clone(good), "--workers=0"), "--workers"},
		"without a rate it says so":          {append(slices.Clone(good), "--api-rate=0"), "--api-rate"},
		"a burst of nothing":                 {append(slices.Clone(good), "--api-burst=0"), "--api-burst"},
		"a rate that is no number":           {append(slices.Clone(good), "--usage-rate=NaN"), "--usage-rate"},
		"a variable of the engines":          {append(slices.Clone(good), "--engine-env=FI_LOG_LEVEL=warn"), ""},
		"a variable without a value":         {append(slices.Clone(good), "--engine-env=FI_LOG_LEVEL"), "NAME=VALUE"},
		"a variable that is the operator's":  {append(slices.Clone(good), "--engine-env=WEIR_RANK=3"), "WEIR_RANK is set by the operator"},
		"an unknown flag is refused by name": {append(slices.Clone(good), "--turbo"), "turbo"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", "")
			t.Setenv("WEIR_ENGINE_IMAGE", "")
			_, err := parse(tc.args)
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestParseNamespaces(t *testing.T) {
	o, err := parse([]string{"--namespace=a", "--engine-image=b", "--watch-namespaces= x ,,y"})
	if err != nil || !slices.Equal(o.watchNamespaces, []string{"x", "y"}) {
		t.Errorf("namespaces %v, %v", o.watchNamespaces, err)
	}
}
