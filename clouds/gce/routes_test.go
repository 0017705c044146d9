package gce_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
)

// keyFile returns a service account's key file, with a good key or not.
func keyFile(t *testing.T, token string, good bool) string {
	t.Helper()
	text := "MIIE"
	if good {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		text = string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	}
	file, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "twill@host-1.iam.gserviceaccount.com",
		"private_key_id": "1", "private_key": text, "token_uri": token})
	if err != nil {
		t.Fatal(err)
	}
	return string(file)
}

// list returns the routes to a prefix.
func list(t *testing.T, c cloud.Cloud, self cloud.Self, dst string) (routes []cloud.Route) {
	t.Helper()
	all, err := c.List(t.Context(), self)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.Dst == prefix(dst) {
			routes = append(routes, r)
		}
	}
	return routes
}

func self(t *testing.T, w cloudtest.World, i int) cloud.Self {
	t.Helper()
	s, err := w.Nodes[i].Self(t.Context(), w.Local[i])
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestNames: a route's name is a name, and tells what made it; two nodes choose the same.
func TestNames(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s := self(t, w, 0)
	for _, dst := range []string{"10.244.1.0/24", "fd00:244:ffff:ffff::/64", "255.255.255.255/32", "fd00:244:1111:2222:3333:4444:5555:6666/128"} {
		r := cloud.Route{Dst: prefix(dst), Target: s.Target}
		if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Create, Route: r}); err != nil {
			t.Fatal(err)
		}
		got := list(t, w.Nodes[1], s, dst)
		if len(got) != 1 || !regexp.MustCompile(`^twill-[0-9a-f]{8}-[0-9a-f-]+$`).MatchString(got[0].Name) || got[0].Mark == "" {
			t.Errorf("%s: %+v", dst, got)
		}
	}
}

// TestFlannel: a route that flannel made is the node's own, and goes by its name when the node's subnet is another one.
func TestFlannel(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s := self(t, w, 0)
	w.Network.Set(cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target, Name: "flannel-10-244-1-0-24"})
	have, err := w.Nodes[0].List(t.Context(), s)
	if err != nil || len(have) != 1 || have[0].Name != "flannel-10-244-1-0-24" {
		t.Fatalf("%+v, %v", have, err)
	}
	if changes := cloud.Diff([]cloud.Route{{Dst: prefix("10.244.1.0/24"), Target: s.Target}}, have, s, pools); len(changes) > 0 {
		t.Errorf("with the right subnet: %v", changes)
	}
	changes := cloud.Diff([]cloud.Route{{Dst: prefix("10.244.2.0/24"), Target: s.Target}}, have, s, pools)
	for _, c := range changes {
		if err := w.Nodes[0].Apply(t.Context(), s, c); err != nil {
			t.Error(err)
		}
	}
	if after := w.Network.Routes(); len(after) != 1 || after[0].Dst != prefix("10.244.2.0/24") {
		t.Errorf("after %v: %v", changes, after)
	}
}

// TestNameless: a record of a node's routes has no names. What is deleted then is the one that leads there.
func TestNameless(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s, other := self(t, w, 0), self(t, w, 1)
	theirs := cloud.Route{Dst: prefix("10.244.1.0/24"), Target: other.Target, Name: "twill-1"}
	w.Network.Set(theirs, cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target, Name: "flannel-10-244-1-0-24"})
	own := cloud.Change{Op: cloud.Delete, Route: cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target}}
	if err := w.Nodes[0].Apply(t.Context(), s, own); err != nil || !slices.Equal(w.Network.Routes(), []cloud.Route{theirs}) {
		t.Errorf("%v, left %+v", err, w.Network.Routes())
	}
	if err := w.Nodes[0].Apply(t.Context(), s, own); !errors.Is(err, cloud.ErrGone) {
		t.Errorf("again: %v, want %v", err, cloud.ErrGone)
	}
}

// TestDoubles: several routes to one prefix are listed, and each is deleted by its name.
func TestDoubles(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s, other := self(t, w, 0), self(t, w, 1)
	w.Network.Set(cloud.Route{Dst: prefix("10.244.1.0/24"), Target: other.Target, Name: "a"},
		cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target, Name: "b"}, cloud.Route{Dst: prefix("10.244.1.0/24"), Target: "default-internet-gateway", Name: "c"})
	have := list(t, w.Nodes[0], s, "10.244.1.0/24")
	if len(have) != 3 {
		t.Fatalf("got %v", have)
	}
	for _, c := range cloud.Diff([]cloud.Route{{Dst: prefix("10.244.1.0/24"), Target: s.Target}}, have, s, pools) {
		if err := w.Nodes[0].Apply(t.Context(), s, c); err != nil {
			t.Error(err)
		}
	}
	if after := w.Network.Routes(); len(after) != 1 || after[0].Name != "b" {
		t.Errorf("left: %+v", after)
	}
}

// TestNotThatRoute: a route that has another target or prefix by now stays, and is not replaced.
func TestNotThatRoute(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s, other := self(t, w, 0), self(t, w, 1)
	is := cloud.Route{Dst: prefix("10.244.1.0/24"), Target: other.Target, Name: "a"}
	w.Network.Set(is)
	was := is
	was.Target = s.Target
	if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: was}); !errors.Is(err, cloud.ErrGone) {
		t.Errorf("Delete: %v, want %v", err, cloud.ErrGone)
	}
	want := cloud.Route{Dst: is.Dst, Target: s.Target}
	if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Replace, Route: want, Old: was}); !errors.Is(err, cloud.ErrExists) {
		t.Errorf("Replace: %v, want %v", err, cloud.ErrExists)
	}
	was = is
	was.Dst = prefix("10.244.7.0/24")
	if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: was}); !errors.Is(err, cloud.ErrGone) {
		t.Errorf("Delete of another prefix: %v, want %v", err, cloud.ErrGone)
	}
	if after := w.Network.Routes(); !slices.Equal(after, []cloud.Route{is}) {
		t.Errorf("left: %+v", after)
	}
}

// TestReplaceGone: what is to be replaced may have gone meanwhile.
func TestReplaceGone(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s := self(t, w, 0)
	want := cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target}
	old := cloud.Route{Dst: want.Dst, Target: "projects/host-1/zones/z/instances/gone", Name: "gone"}
	if err := w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Replace, Route: want, Old: old}); err != nil {
		t.Error(err)
	}
	if got := list(t, w.Nodes[0], s, "10.244.1.0/24"); len(got) != 1 || got[0].Target != s.Target {
		t.Errorf("got %v", got)
	}
}

// TestCheck: each trouble is found, and its remedy is a command of gcloud. Without troubles there is none.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		denied       []string
		off          bool
		subnet       string
		want, object string
	}{
		"nothing":           {},
		"forwarding is off": {off: true, want: cloud.ForwardingOff, object: "node-a"},
		"get the instance":  {denied: []string{"compute.instances.get"}, want: cloud.Denied, object: "compute.instances.get"},
		"use the instance":  {denied: []string{"compute.instances.use"}, want: cloud.Denied, object: "compute.instances.use"},
		"list":              {denied: []string{"compute.routes.list"}, want: cloud.Denied, object: "compute.routes.list"},
		"delete":            {denied: []string{"compute.routes.delete"}, want: cloud.Denied, object: "compute.routes.delete"},
		"another subnet":    {subnet: "10.128.0.0/20"},
		"overlap":           {subnet: "10.245.0.0/20", want: cloud.Overlap, object: "10.245.0.0/20"},
	} {
		w := world(t, fake.GCEOptions{}, false)
		s := self(t, w, 0)
		w.Network.SetForwards(s.Target, !test.off)
		routes := []cloud.Route{{Dst: prefix("10.244.1.0/24"), Target: s.Target}}
		if test.subnet != "" {
			routes = append(routes, cloud.Route{Dst: prefix(test.subnet), Target: w.Network.ID, Name: "default-route-1"})
		}
		w.Network.Set(routes...)
		w.Network.Break(fake.Faults{Denied: test.denied})
		got, err := w.Nodes[0].Check(t.Context(), s)
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case test.want == "" && len(got) > 0, test.want != "" && (len(got) != 1 || got[0].ID != test.want):
			t.Errorf("%s: %+v, want %s", name, got, test.want)
		case test.want != "" && (!strings.Contains(got[0].Object+got[0].Actual, test.object) || !strings.HasPrefix(got[0].Fix, "gcloud ")):
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}

// TestPermissions: each documented permission is needed for something, and names itself when it is missing.
func TestPermissions(t *testing.T) {
	for _, p := range []string{"compute.routes.list", "compute.routes.get", "compute.routes.create", "compute.routes.delete",
		"compute.networks.updatePolicy", "compute.globalOperations.get", "compute.instances.get", "compute.instances.use"} {
		w := world(t, fake.GCEOptions{}, false)
		s := self(t, w, 0)
		w.Network.Break(fake.Faults{Denied: []string{p}})
		r := cloud.Route{Dst: prefix("10.244.1.0/24"), Target: s.Target}
		errs := []error{w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Create, Route: r})}
		w.Network.Set(r)
		_, err := w.Nodes[0].List(t.Context(), s)
		errs = append(errs, err)
		if have := w.Network.Routes(); err == nil {
			have[0].Name = list(t, w.Nodes[0], s, "10.244.1.0/24")[0].Name
			errs = append(errs, w.Nodes[0].Apply(t.Context(), s, cloud.Change{Op: cloud.Delete, Route: have[0]}))
		}
		err = errors.Join(errs...)
		if p == "compute.instances.get" { // that is Check's, which tells of it
			if err != nil {
				t.Errorf("without %s: %v", p, err)
			}
			continue
		}
		if !errors.Is(err, cloud.ErrDenied) || !strings.Contains(err.Error(), p) {
			t.Errorf("without %s: %v", p, err)
		}
	}
}

// TestAway: an API that closes connections is an error that nobody waits for.
func TestAway(t *testing.T) {
	w := world(t, fake.GCEOptions{}, false)
	s := self(t, w, 0)
	w.Network.Break(fake.Faults{Away: true})
	if _, err := w.Nodes[0].List(t.Context(), s); err == nil {
		t.Error("no error")
	}
	if _, err := w.Nodes[0].Self(t.Context(), w.Local[0]); err != nil {
		t.Errorf("the metadata service is the machine's own: %v", err)
	}
}
