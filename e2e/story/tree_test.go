package story

import (
	"strings"
	"testing"
)

func TestCompareFindsEachKindOfDifference(t *testing.T) {
	source := &tree{entries: map[string]entry{
		"a":   {kind: "f", mode: "644", mtime: "10.500000000", digest: "aa"},
		"d":   {kind: "d", mode: "755", mtime: "20.000000000"},
		"d/l": {kind: "l", mode: "777", mtime: "30.000000001", digest: "../a"},
	}}
	same := "f\t644\t10.5000000000\t\ta\nd\t755\t20.0000000000\t\td\nl\t777\t30.0000000010\t../a\td/l\n---\naa  ./a\n"
	tests := map[string]struct {
		listing string
		want    string
	}{
		"the same tree passes":              {listing: same},
		"a changed byte is found":           {listing: strings.Replace(same, "aa  ./a", "bb  ./a", 1), want: "a: {kind:f"},
		"a changed mode is found":           {listing: strings.Replace(same, "f\t644", "f\t600", 1), want: "mode:600"},
		"a changed time is found":           {listing: strings.Replace(same, "20.0000000000", "20.0000000010", 1), want: "mtime:20.000000001"},
		"a changed link target is found":    {listing: strings.Replace(same, "../a", "../b", 1), want: "digest:../b"},
		"a missing entry is found":          {listing: strings.Replace(same, "d\t755\t20.0000000000\t\td\n", "", 1), want: "d: missing"},
		"an entry too many is found":        {listing: strings.Replace(same, "---", "d\t755\t1.0\t\tx\n---", 1), want: "x: not in the source"},
		"a listing that was cut is refused": {listing: "f\t644\t10.5\t\ta\n", want: "cut off"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := source.compare(tc.listing)
			switch {
			case tc.want == "" && err != nil:
				t.Fatalf("unexpected difference: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Fatalf("error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}
