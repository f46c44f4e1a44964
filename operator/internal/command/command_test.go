package command

import (
	"os"
	"os/exec"
	"testing"
)

// asked is set for the process of this test program that plays one which is asked for its version.
const asked = "WEIR_TEST_VERSION"

func TestVersionIsPrintedAndEndsTheProgram(t *testing.T) {
	if os.Getenv(asked) != "" {
		err := Flags("weir-program", "1.2.3", "does nothing").Parse([]string{"--version", "--unknown"})
		t.Fatalf("it goes on: %v", err)
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	program.Env = append(os.Environ(), asked+"=yes")
	printed, err := program.Output()
	if err != nil || string(printed) != "weir-program 1.2.3\n" {
		t.Errorf("%v, printed %q", err, printed)
	}
}
