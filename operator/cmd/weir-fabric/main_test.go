package main

import (
	"strings"
	"testing"
)

func TestTheCommandLineIsChecked(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	for want, args := range map[string][]string{
		"unexpected argument":  {"extra"},
		"--node is empty":      {"--namespace=s"},
		"--namespace is empty": {"--node=n"},
		"--interval is less":   {"--node=n", "--namespace=s", "--interval=1ms"},
		"":                     {"--node=n", "--namespace=s"},
	} {
		_, err := parse(args)
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
