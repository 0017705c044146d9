package kube

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/policy"
	"github.com/twill-net/twill/policy/manifest"
)

var drawnPolicies = flag.Int("drawn", 500, "NetworkPolicies that TestRefusedAlike draws")

// TestRefusedAlike: of drawn NetworkPolicies the reader of files refuses those that an API server refuses, and no others.
// Ranges that older API servers take, and this one does not (bits beside the prefix, zeros before numbers, IPv4-mapped), are not
// drawn: files may have what those print.
func TestRefusedAlike(t *testing.T) {
	s := startServer(t, controlplane.APIServerConfig{})
	d := drawer{rand.New(rand.NewPCG(7, 7))} //nolint:gosec // no secrets
	refused := 0
	for range *drawnPolicies {
		text, err := json.Marshal(d.policy())
		if err != nil {
			t.Fatal(err)
		}
		if d.IntN(40) == 0 {
			text = bytes.Replace(text, []byte(`"spec":`), []byte(`"spec":{},"spec":`), 1)
		}
		err = s.admin.Post().AbsPath(policies).SetHeader("Content-Type", "application/json").Param("dryRun", "All").
			Param("fieldValidation", "Strict").Body(text).Do(t.Context()).Error()
		if status := apierrors.APIStatus(nil); err != nil && (!asStatus(err, &status) ||
			status.Status().Code != http.StatusBadRequest && status.Status().Code != http.StatusUnprocessableEntity) {
			t.Fatalf("%s: %v", text, err)
		}
		var snapshot policy.Snapshot
		if unread := manifest.Read(bytes.NewReader(text), &snapshot); unread != nil {
			if err == nil {
				t.Errorf("the API server takes what the reader refuses: %v: %s", unread, text)
			}
			continue
		}
		if len(snapshot.Policies) != 1 {
			t.Fatalf("got %d policies of %s", len(snapshot.Policies), text)
		}
		_, skips := policy.New(snapshot)
		switch {
		case err == nil && len(skips) > 0:
			t.Errorf("the API server takes what the reader refuses: %v: %s", skips[0].Err, text)
		case err != nil && len(skips) == 0:
			t.Errorf("the API server refuses what the reader takes: %v: %s", err, text)
		case err != nil:
			refused++
		}
	}
	if most := *drawnPolicies; refused < most/4 || refused > most*3/4 {
		t.Errorf("%d of %d are refused, want something of each", refused, most)
	}
	t.Logf("%d of %d are refused", refused, *drawnPolicies)
}

// asStatus reports whether the error is an API server's answer.
func asStatus(err error, to *apierrors.APIStatus) (ok bool) {
	*to, ok = err.(apierrors.APIStatus)
	return ok
}

// drawer draws NetworkPolicies, about half of them with something wrong.
type drawer struct{ *rand.Rand }

// one draws what is right, and seldom what is wrong.
func (d drawer) one(right, wrong []any) any {
	if d.IntN(50) == 0 {
		return wrong[d.IntN(len(wrong))]
	}
	return right[d.IntN(len(right))]
}

// sometimes adds a field once in n times.
func (d drawer) sometimes(n int, to object, name string, draw func() any) {
	if d.IntN(n) == 0 {
		to[name] = draw()
	}
}

// list draws a list of at most n.
func (d drawer) list(n int, draw func() any) func() any {
	return func() any {
		all := []any{}
		for range d.IntN(n + 1) {
			all = append(all, d.one([]any{draw()}, []any{nil, "x", []any{}, object{}}))
		}
		return all
	}
}

func (d drawer) policy() object {
	p := object{"apiVersion": d.one([]any{"networking.k8s.io/v1"}, []any{"v1", "networking.k8s.io/v2", "extensions/v1beta1"}),
		"kind": d.one([]any{"NetworkPolicy"}, []any{"networkPolicy"})}
	meta := object{"name": d.one([]any{"p", "a.b", "p-1"}, []any{"P", "", "x_y", "-a"})}
	d.sometimes(2, meta, "namespace", func() any { return "default" })
	d.sometimes(4, meta, "labels", d.labels)
	d.sometimes(40, meta, "label", d.labels)
	d.sometimes(8, meta, "creationTimestamp", func() any { return d.one([]any{nil, "2026-01-02T03:04:05Z"}, []any{"x", 5}) })
	spec := object{}
	d.sometimes(1, spec, d.one([]any{"podSelector"}, []any{"podselector", "selector"}).(string), d.selector)
	d.sometimes(2, spec, d.one([]any{"ingress"}, []any{"ingres", "Ingress"}).(string), d.list(2, d.rule("from")))
	d.sometimes(2, spec, "egress", d.list(2, d.rule("to")))
	d.sometimes(2, spec, "policyTypes", d.list(2, func() any { return d.one([]any{"Ingress", "Egress"}, []any{"ingress", "", "Both", 5}) }))
	if d.IntN(60) == 0 {
		spec["policyTypes"] = []string{"Ingress", "Egress", "Ingress"}
	}
	p["metadata"], p["spec"] = meta, spec
	return p
}

func (d drawer) labels() any {
	all := object{}
	for range d.IntN(3) {
		key := d.one([]any{"app", "example.com/tier", "a_b"}, []any{"-", "a/b/c", "", "a b"}).(string)
		all[key] = d.one([]any{"web", "", "1.0"}, []any{5, "a b", "-x", nil, true})
	}
	return all
}

func (d drawer) selector() any {
	s := object{}
	d.sometimes(2, s, "matchLabels", d.labels)
	d.sometimes(4, s, "matchExpressions", d.list(2, func() any {
		e := object{"key": d.one([]any{"app", "example.com/tier"}, []any{"", "a b", 5})}
		if d.IntN(2) == 0 {
			e["operator"] = d.one([]any{"Exists", "DoesNotExist"}, []any{"exists", "", "In"})
			return e
		}
		e["operator"] = d.one([]any{"In", "NotIn"}, []any{"Exists", "Gt", "Like"})
		e["values"] = d.one([]any{[]any{"a"}, []any{"a", "b"}, []any{""}}, []any{[]any{}, nil, []any{"a b"}, []any{5}, "a"})
		return e
	}))
	d.sometimes(80, s, "matchLabel", d.labels)
	return s
}

func (d drawer) rule(peers string) func() any {
	return func() any {
		r := object{}
		d.sometimes(2, r, d.one([]any{"ports"}, []any{"port", "protocols"}).(string), d.list(2, d.port))
		d.sometimes(2, r, d.one([]any{peers}, []any{"peers", "from", "to"}).(string), d.list(2, d.peer))
		return r
	}
}

func (d drawer) port() any {
	p := object{}
	d.sometimes(2, p, "protocol", func() any { return d.one([]any{"TCP", "UDP", "SCTP", nil}, []any{"tcp", "ICMP", "", 6}) })
	switch d.IntN(4) {
	case 0:
		p["port"] = d.one([]any{"http", "a-1"}, []any{"80", "", "HTTP", "a--b", "longer-than-fifteen"})
		d.sometimes(20, p, "endPort", func() any { return 90 })
	case 1:
		p["port"] = d.one([]any{80, 1}, []any{0, -1, 65536, 1.5, true})
		p["endPort"] = d.one([]any{80, 90, 65535}, []any{0, 79, 65536, "90", 1 << 33})
	case 2:
		p["port"] = d.one([]any{80, 65535, nil}, []any{0, 65536, 1 << 33, []any{}})
	default:
		d.sometimes(20, p, "endPort", func() any { return 90 })
	}
	return p
}

func (d drawer) peer() any {
	p := object{}
	if d.IntN(2) == 0 {
		block := object{"cidr": d.one([]any{"10.0.0.0/8", "::/0", "fd00::/8", "0.0.0.0/0"},
			[]any{"10.0.0.0", "10.0.0.0/33", "", "x", 5, "fe80::%eth0/64", "10.0.0/8"})}
		if block["cidr"] == "10.0.0.0/8" || d.IntN(20) == 0 {
			d.sometimes(2, block, "except", d.list(2, func() any {
				return d.one([]any{"10.1.0.0/16", "10.0.0.0/9", "10.2.3.4/32"}, []any{"10.0.0.0/8", "11.0.0.0/16", "0.0.0.0/0", "fd00::/16", "", "x", 5})
			}))
		}
		p["ipBlock"] = block
		d.sometimes(40, p, "podSelector", d.selector)
		return p
	}
	p[d.one([]any{"podSelector", "namespaceSelector"}, []any{"selector", "podselector"}).(string)] = d.selector()
	d.sometimes(2, p, "namespaceSelector", d.selector)
	return p
}
