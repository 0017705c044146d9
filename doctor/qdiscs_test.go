package doctor

import (
	"strings"
	"testing"
)

// TestQdiscs: only what drops now is found, once a device, and not what limits a pod's bandwidth as its owner asked.
func TestQdiscs(t *testing.T) {
	tbf := Qdisc{Kind: "tbf", Handle: "1:", Hook: "root", Dropped: 3}
	on := func(dev string, q Qdisc) Qdisc { q.Dev = dev; return q }
	for name, test := range map[string]struct {
		qdiscs []Qdisc
		count  int
		fix    string
	}{
		"dropped earlier":            {[]Qdisc{{Dev: "cni0", Kind: "tbf", Handle: "8001:", Hook: "root", Passed: 9}}, 0, ""},
		"a pod's limit":              {[]Qdisc{on("veth1", tbf)}, 0, ""},
		"the same on the bridge":     {[]Qdisc{on("cni0", tbf)}, 1, "tc qdisc del dev cni0 root,"},
		"another on a pod's port":    {[]Qdisc{{Dev: "veth1", Kind: "clsact", Handle: "ffff:", Hook: "clsact", Dropped: 1}}, 1, "tc qdisc del dev veth1 clsact,"},
		"a root and what it holds":   {[]Qdisc{on("cni0", tbf), {Dev: "cni0", Kind: "pfifo", Handle: "2:", Hook: "parent 1:1", Dropped: 3}}, 1, "dev cni0 root,"},
		"only what a root holds":     {[]Qdisc{{Dev: "cni0", Kind: "mq"}, {Dev: "cni0", Kind: "pfifo", Hook: "parent 1:1", Dropped: 3}}, 1, "dev cni0 parent 1:1,"},
		"on the bridge and a device": {[]Qdisc{on("cni0", tbf), on("eth0", tbf)}, 2, "dev cni0 root,"},
	} {
		f := healthy()
		f.Ports = []Port{{Name: "veth1", Master: "cni0", Up: true, Pod: true}}
		f.Qdiscs = test.qdiscs
		got := Check(f)
		switch {
		case test.count == 0 && len(got) > 0:
			t.Errorf("%s: got %+v", name, got)
		case test.count > 0 && (len(got) != 1 || got[0].ID != "qdisc-drops" || got[0].Count != test.count ||
			!strings.Contains(got[0].Fix, test.fix)):
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// TestCarries: the doctor looks at devices that pods' packets pass through, and at no others.
func TestCarries(t *testing.T) {
	f, _ := pair(t)
	for dev, want := range map[string]bool{"flannel.1": true, "cni0": true, "veth1": true, "eth0": true, "docker0": false} {
		if f.Carries(dev) != want {
			t.Errorf("%s: got %t", dev, !want)
		}
	}
}

// TestCutOff: the fix names the pod if the runtime has said which it is.
func TestCutOff(t *testing.T) {
	f := healthy()
	f.CutOff = []CutOff{{Namespace: "web", Name: "front-7", Sandbox: "5ba6d0", Dev: "veth7"}, {Sandbox: "77", Dev: "veth8"}}
	got := checkAll(f)
	if len(got) != 2 || got[0].Fix != "kubectl delete pod -n web front-7" || got[0].Object != "pod web/front-7" ||
		got[1].Object != "sandbox 77" || got[1].Fix == "" {
		t.Errorf("got %+v", got)
	}
}
