package certs

import (
	"slices"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
)

// TestEnds: of a chain the first certificate counts, of authorities the last to end; what is none is an error.
func TestEnds(t *testing.T) {
	ca := controlplanetest.NewAuthority(t, "ca")
	soon, late := time.Now().Add(time.Hour).UTC().Truncate(time.Second), time.Now().Add(9*time.Hour).UTC().Truncate(time.Second)
	first, key := ca.Issue(t, "first", soon)
	second, _ := ca.Issue(t, "second", late)
	both := slices.Concat(key, first, second)
	if c, err := Of("x", both); err != nil || !c.Ends.Equal(soon) || c.Name != "x" {
		t.Errorf("the first: %+v, %v, want %s", c, err, soon)
	}
	if c, err := OfAll("x", both); err != nil || !c.Ends.Equal(late) {
		t.Errorf("all: %+v, %v, want %s", c, err, late)
	}
	for _, bad := range [][]byte{nil, key, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")} {
		if c, err := OfAll("x", bad); err == nil {
			t.Errorf("%q became %+v", bad, c)
		}
	}
}
