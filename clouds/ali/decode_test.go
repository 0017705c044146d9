package ali

import (
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
)

// FuzzAnswer: no answer is too odd.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"NextToken":"a","RouteEntrys":{"RouteEntry":[{"DestinationCidrBlock":"10.244.1.0/24","Status":"Available",` +
			`"NextHops":{"NextHop":[{"NextHopId":"i-1","NextHopType":"Instance","Enabled":1}]}}]}}`,
		`{"RouteEntrys":{"RouteEntry":[{"DestinationCidrBlock":"fd00::1","InstanceId":"i-1"},{"DestinationCidrBlock":"pl-1"}]}}`,
		`{"Code":"InvalidCidrBlock","Message":"a\nb","RequestId":"1"}`, `[]`, `{`, ``, "{\"Code\":\"\\u0000\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var page struct {
			RouteEntrys struct{ RouteEntry []entry }
		}
		if decode(body, &page) == nil {
			for _, e := range page.RouteEntrys.RouteEntry {
				r, ok := e.route("vtb-1")
				if ok && (!r.Dst.IsValid() || r.Dst != r.Dst.Masked() || r.Target == "") {
					t.Errorf("%+v of %+v", r, e)
				}
				_ = r.String()
			}
		}
		text := failure("CreateRouteEntry", 400, body).redact("secret").Error()
		if strings.ContainsAny(text, "\n\r\x1b") || len(text) > 4000 || text == "" {
			t.Errorf("not one line: %q", text)
		}
	})
}

// TestEntry: next hops and states as the API has them.
func TestEntry(t *testing.T) {
	for _, test := range []struct {
		body   string
		target string
		state  cloud.State
	}{
		{`{"Status":"Available","NextHops":{"NextHop":[{"NextHopId":"i-1","NextHopType":"Instance","Enabled":1}]}}`, "i-1", cloud.Active},
		{`{"Status":"Available","NextHops":{"NextHop":[{"NextHopId":"i-1","NextHopType":"Instance"}]}}`, "i-1", cloud.Active},
		{`{"Status":"Available","NextHops":{"NextHop":[{"NextHopId":"i-1","Enabled":0}]}}`, "i-1", cloud.Blackhole},
		{`{"Status":"Available","NextHops":{"NextHop":[{"NextHopId":"i-1","Enabled":0},{"NextHopId":"i-2","Enabled":1}]}}`, "i-1,i-2", cloud.Active},
		{`{"Status":"Pending","NextHops":{"NextHop":[{"NextHopId":"i-1","Enabled":0}]}}`, "i-1", cloud.Pending},
		{`{"Status":"Deleting","NextHops":{"NextHop":[{"NextHopId":"i-1","Enabled":1}]}}`, "i-1", cloud.Pending},
		{`{"Type":"System","NextHops":{"NextHop":[{"NextHopId":"","NextHopType":"local","Enabled":1}]}}`, "local", cloud.Active},
		{`{"Type":"System"}`, "local", cloud.Active},
		{`{"InstanceId":"ri-1"}`, "ri-1", cloud.Active},
	} {
		var e entry
		if err := decode([]byte(test.body), &e); err != nil {
			t.Fatal(err)
		}
		e.DestinationCidrBlock = "10.244.1.0/24"
		r, ok := e.route("vtb-1")
		if !ok || r.Target != test.target || r.State != test.state {
			t.Errorf("%s: %s, want %s %s", test.body, r, test.target, test.state)
		}
	}
}
