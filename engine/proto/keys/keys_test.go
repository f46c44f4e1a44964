package keys

import (
	"bytes"
	_ "embed"
	"strconv"
	"strings"
	"testing"
)

//go:embed vectors.txt
var vectors string

func TestKeysAreThoseOfTheEngines(t *testing.T) {
	t.Parallel()
	lines := 0
	for line := range strings.Lines(vectors) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if len(words) != 3 {
			t.Fatalf("%q has %d words", line, len(words))
		}
		system, err := Parse([]byte(words[0]))
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.ParseUint(words[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := Format(Tenant(system, number)); !bytes.Equal(got, []byte(words[2])) {
			t.Errorf("tenant %d: got %s, want %s", number, got, words[2])
		}
		lines++
	}
	if lines < 5 {
		t.Errorf("only %d vectors", lines)
	}
}

func TestWhatIsNoKeyIsRefused(t *testing.T) {
	t.Parallel()
	good := string(Format(make([]byte, Bytes)))
	for name, text := range map[string]string{
		"nothing": "", "too short": "AAEC", "too long": string(Format(make([]byte, Bytes+1))), "other digits": "!" + good[1:], "stray bits": good[:42] + "B=",
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: %q is a key", name, text)
		}
	}
	if _, err := Parse([]byte(good)); err != nil {
		t.Error(err)
	}
}
