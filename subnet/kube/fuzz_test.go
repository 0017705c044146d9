package kube

import (
	"encoding/json"
	"testing"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// FuzzLease reads annotations as anybody may have written them: what is accepted is whole, and is what it was
// after it was published again.
func FuzzLease(f *testing.F) {
	f.Add("10.244.1.0/24,fd00:10:244:1::/64", "vxlan", `{"VNI":1,"VtepMAC":"0a:00:00:00:00:01"}`, "192.0.2.1", "null", "2001:db8::1", "")
	f.Add("10.244.1.7/24", "host-gw", "null", "192.0.2.1", "", "", "203.0.113.1")
	f.Add("fd00::/64", "wireguard", "", "", `{"PublicKey":"x"}`, "fe80::1%eth0", "")
	f.Add(",,::ffff:10.0.0.0/100", "", "{", "::ffff:10.0.0.1", "\x00", "ff02::1", "0.0.0.0")
	a := newAnnotations(note, []subnet.Pool{pool4, pool6})
	f.Fuzz(func(t *testing.T, cidrs, backend, data4, ip4, data6, ip6, overwrite string) {
		r := record{
			name: "n", podCIDRs: cidrs, managed: "true", backend: backend,
			v4: values{data: data4, public: ip4, overwrite: overwrite}, v6: values{data: data6, public: ip6, overwrite: overwrite},
		}
		l, err := a.lease(r)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a reason")
			}
			return
		}
		for i, s := range l.Stacks {
			checkStack(t, s)
			if i > 0 && (s.Family() != netstate.IPv6 || l.Stacks[0].Family() != netstate.IPv4) {
				t.Errorf("the stacks are not one per family, IPv4 first: %+v", l)
			}
			if _, err := a.advertised(s.Underlay, r); err == nil && overwrite != "" && len(l.Stacks) == 2 {
				if _, err := a.advertised(l.Stacks[1-i].Underlay, r); err == nil {
					t.Errorf("%q is an address of both families", overwrite)
				}
			}
		}
		roundTrip(t, a, l, r)
	})
}

func checkStack(t *testing.T, s subnet.Stack) {
	t.Helper()
	if !s.Subnet.IsValid() || s.Subnet != s.Subnet.Masked() || s.Underlay.Is4() != s.Subnet.Addr().Is4() {
		t.Errorf("got stack %+v", s)
	}
	if s.Underlay.Is4In6() || s.Underlay.Zone() != "" || s.Underlay.IsUnspecified() || s.Underlay.IsMulticast() {
		t.Errorf("got underlay address %s", s.Underlay)
	}
	if s.Data != nil && !json.Valid(s.Data) {
		t.Errorf("got data %q", s.Data)
	}
}

func roundTrip(t *testing.T, a annotations, l subnet.Lease, r record) {
	t.Helper()
	set := a.encode(l)
	get := func(key string) string {
		if v := set[key]; v != nil {
			return *v
		}
		return ""
	}
	again := record{
		name: r.name, podCIDRs: r.podCIDRs, managed: get(a.managed), backend: get(a.backend),
		v4: values{data: get(a.both[0].data), public: get(a.both[0].public)},
		v6: values{data: get(a.both[1].data), public: get(a.both[1].public)},
	}
	got, err := a.lease(again)
	if err != nil || !got.Equal(l) {
		t.Errorf("published again: got %+v %v, want %+v", got, err, l)
	}
	if missing := a.missing(l, again); len(missing) > 0 {
		t.Errorf("it was just published, and %v is missing", missing)
	}
}
