package storagecluster

import (
	"slices"
	"testing"
)

func TestDue(t *testing.T) {
	up := rolloutEngine{runnable: true, exists: true, current: true, serving: true, settled: true}
	missing := rolloutEngine{runnable: true}
	old := rolloutEngine{runnable: true, exists: true, serving: true, settled: true}
	oldDown := rolloutEngine{runnable: true, exists: true}
	oldUnreachable := rolloutEngine{runnable: true, exists: true, serving: true}
	rekeyed := rolloutEngine{runnable: true, exists: true, serving: true, settled: true, rekeyed: true}
	starting := rolloutEngine{runnable: true, exists: true, current: true}
	fresh := rolloutEngine{runnable: true, exists: true, current: true, fresh: true}
	homeless := rolloutEngine{fresh: true}
	added := rolloutEngine{runnable: true, fresh: true}
	tests := map[string]struct {
		engines []rolloutEngine
		want    []int32
	}{
		"a cluster at rest is left alone":                                 {[]rolloutEngine{up, up, up}, nil},
		"missing engines are made all at once":                            {[]rolloutEngine{missing, missing, missing}, []int32{0, 1, 2}},
		"an engine without a node has to wait":                            {[]rolloutEngine{missing, homeless}, []int32{0}},
		"an engine without a node waits while the others are up, too":     {[]rolloutEngine{up, up, homeless}, nil},
		"an engine that is added does not put off a rollout":              {[]rolloutEngine{added, old, old}, []int32{0, 1}},
		"of outdated engines the first is restarted":                      {[]rolloutEngine{old, old, old}, []int32{0}},
		"the next one follows when the first is up":                       {[]rolloutEngine{up, old, old}, []int32{1}},
		"engines that seal by another key are restarted together":         {[]rolloutEngine{rekeyed, rekeyed, rekeyed}, []int32{0, 1, 2}},
		"those that are left after the operator was restarted are, too":   {[]rolloutEngine{starting, rekeyed, rekeyed}, []int32{1, 2}},
		"while one is starting the others wait":                           {[]rolloutEngine{starting, old, old}, nil},
		"an outdated engine that is down is replaced at once":             {[]rolloutEngine{oldDown, old, old}, []int32{0}},
		"all outdated engines that are down are replaced at once":         {[]rolloutEngine{oldDown, oldDown, old}, []int32{0, 1}},
		"engines that serve but don't answer the operator are left":       {[]rolloutEngine{oldUnreachable, oldUnreachable}, nil},
		"a rollout waits for an engine that does not answer":              {[]rolloutEngine{up, oldUnreachable, old}, nil},
		"an engine that was never up does not hold up the others":         {[]rolloutEngine{up, old, fresh}, []int32{1}},
		"nor does one without a node":                                     {[]rolloutEngine{old, old, homeless}, []int32{0}},
		"an engine that is added does not hold up nor restart the others": {[]rolloutEngine{up, up, missing}, []int32{2}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for rank := range tc.engines {
				tc.engines[rank].rank = int32(rank)
			}
			got, next := due(tc.engines)
			if next != nil {
				got = append(got, *next)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("due %v, want %v", got, tc.want)
			}
		})
	}
}
