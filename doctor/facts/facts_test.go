package facts

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/agent"
	"github.com/twill-net/twill/backend"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/internal/testns"
	"github.com/twill-net/twill/subnet"
)

// TestSettings: what the caller names goes before what the agent said, and that before the defaults.
func TestSettings(t *testing.T) {
	checkpoint := filepath.Join(t.TempDir(), "checkpoint.json")
	const saved = `{"Version":1,"Node":"n1","Network":{"Network":"10.244.0.0/16"},"Local":{"Node":"n1","Backend":"vxlan"},
"Settings":{"SubnetFile":"/x/subnet.env","Bridge":"br7","Choice":{"Names":["eth1"],"Patterns":["eth."]},"Firewall":{"Masq":true},
"Healthz":"127.0.0.1:10256","Conflist":{"Source":"/src","Target":"/y/10-z.conflist"},"Kube":{"Use":true,"Kubeconfig":"/k"}}}`
	if err := os.WriteFile(checkpoint, []byte(saved), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Checkpoint: checkpoint}
	testns.Enter(t) // where no agent of another test runs
	s, a, err := o.settings()
	if err == nil || a.Running {
		t.Fatalf("an agent runs here: %+v", s)
	}
	if s.Checkpoint != checkpoint || s.SubnetFile != "/x/subnet.env" || s.Bridge != "br7" || !slices.Equal(s.Choice.Names, []string{"eth1"}) ||
		len(s.Choice.Patterns) != 1 || !s.Firewall.Masq || s.Firewall.Random || !s.Kube.Use || s.BinDir != "/opt/cni/bin" || !s.Choice.Settled {
		t.Errorf("of the checkpoint: %+v", s)
	}
	if dir, name := o.conflist(s); dir != "/y/" || name != "10-z.conflist" {
		t.Errorf("the conflist is %q in %q", name, dir)
	}
	o = Options{Checkpoint: checkpoint, SubnetFile: "/a", Bridge: "b", Iface: "eth2", BinDir: "/c", Reservations: "/d", Kubeconfig: "/e", CNIDir: "/f", CNIFile: "g"}
	s, _, _ = o.settings()
	if s.SubnetFile != "/a" || s.Bridge != "b" || !slices.Equal(s.Choice.Names, []string{"eth2"}) || s.BinDir != "/c" || s.Reservations != "/d" || s.Kube.Kubeconfig != "/e" {
		t.Errorf("named: %+v", s)
	}
	if dir, name := o.conflist(s); dir != "/f" || name != "g" {
		t.Errorf("the named conflist is %q in %q", name, dir)
	}
	o = Options{Checkpoint: checkpoint + ".none"}
	s, _, _ = o.settings()
	if s.SubnetFile != "/run/flannel/subnet.env" || s.Bridge != "cni0" || s.Firewall.Masq || !s.Firewall.Random || s.Firewall.Forward != backend.ForwardOn {
		t.Errorf("the defaults are %+v", s)
	}
	if dir, name := o.conflist(s); dir != "" || name != "10-twill.conflist" {
		t.Errorf("the default conflist is %q in %q", name, dir)
	}
}

// TestProblem: what the API server and the connection to it do has a class, whatever the words are.
func TestProblem(t *testing.T) {
	status := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,
"message":"User \"u\" cannot get resource \"nodes\": unauthorized, too many requests"}`, status)
	}))
	defer server.Close()
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	secure.Config.ErrorLog = nil
	ask := func(url string) doctor.API {
		f := doctor.Facts{Node: "n1"}
		f.Lease.Network.Pools = []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}}
		g := gathering{Facts: &f, options: Options{AskAPI: true}, settings: agent.Settings{Kube: agent.KubeSettings{Use: true, URL: url}}}
		return g.api(t.Context())
	}
	for code, want := range map[int]doctor.APIProblem{401: doctor.Unauthorized, 403: doctor.Forbidden, 429: doctor.TooManyRequests, 500: doctor.OtherProblem} {
		status = code
		if got := ask(server.URL); got.Problem != want || got.Grant != "u the verb get on nodes" {
			t.Errorf("%d: %+v, want %s", code, got, want)
		}
	}
	if got := ask(secure.URL); got.Problem != doctor.UnknownAuthority || got.Grant != "" {
		t.Errorf("a certificate of nobody: %+v", got)
	}
	server.Close()
	if got := ask(server.URL); got.Problem != doctor.Unreachable {
		t.Errorf("a closed port: %+v", got)
	}
	for want, err := range map[doctor.APIProblem]error{
		doctor.ExpiredCert:  x509.CertificateInvalidError{Reason: x509.Expired},
		doctor.OtherProblem: errors.New("certificate has expired or is not yet valid"),
		doctor.Unreachable:  &net.OpError{Op: "dial", Err: unix.EHOSTUNREACH},
	} {
		if got := problem(fmt.Errorf("get: %w", err)); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if got := problem(context.DeadlineExceeded); got != doctor.Unreachable {
		t.Errorf("a deadline: %s", got)
	}
}

// TestUnreadableLeases: where leases are Lease objects, it is trouble that these cannot be read, whatever the Node is.
func TestUnreadableLeases(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/leases") {
			fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,
"message":"leases.coordination.k8s.io is forbidden: User \"u\" cannot list resource \"leases\" in API group"}`)
	}))
	defer server.Close()
	for store, want := range map[string]doctor.APIProblem{subnet.StoreLeases: doctor.Forbidden, subnet.StoreBoth: "", "": ""} {
		f := doctor.Facts{Node: "n1"}
		f.Lease.Network = subnet.Config{Store: store, Pools: []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/16")}}}
		g := gathering{Facts: &f, options: Options{AskAPI: true},
			settings: agent.Settings{Kube: agent.KubeSettings{Use: true, URL: server.URL}}}
		got := g.api(t.Context())
		if got.Problem != want || want != "" && got.Grant != "u the verb list on leases" {
			t.Errorf("Store %q: got %+v, want %q", store, got, want)
		}
	}
}

func TestAgentSaysItsVersion(t *testing.T) {
	text := "# HELP twill_build_info 1; the version is a label.\n# TYPE twill_build_info gauge\ntwill_build_info{version=\"v1.2.3\"} 1\ntwill_last_apply_timestamp_seconds 1.7e+09\n"
	if got := buildOf(text); got != "v1.2.3" {
		t.Errorf("got %q", got)
	}
	if m := metrics(text); m["twill_last_apply_timestamp_seconds"] != 1.7e9 {
		t.Errorf("got %v", m)
	}
}

// TestNeeded: each address family of ipip has a module of its own.
func TestNeeded(t *testing.T) {
	pool4, pool6 := subnet.Pool{Network: netip.MustParsePrefix("10.244.0.0/16")}, subnet.Pool{Network: netip.MustParsePrefix("fc00::/48")}
	for want, pools := range map[string][]subnet.Pool{"ipip": {pool4}, "ip6_tunnel": {pool6}, "ipip ip6_tunnel": {pool4, pool6}} {
		var names []string
		for _, m := range needed(subnet.Config{Backend: "ipip", Pools: pools})[2:] {
			names = append(names, m.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%v: got %s, want %s", pools, got, want)
		}
	}
}

// TestMissing asks this kernel: what is loaded or built in is there, and what has no option at all is not.
func TestMissing(t *testing.T) {
	release := kernelRelease()
	if got := missing(needed(subnet.Config{Backend: "vxlan"}), release); len(got) > 0 {
		t.Errorf("a kernel on which these tests run lacks %v", got)
	}
	if _, known := moduleFiles(release); !known && len(kernelConfig(release)) == 0 {
		t.Skip("this kernel does not say what it has")
	}
	got := missing([]module{{"nosuchnet", "CONFIG_NO_SUCH_NET"}}, release)
	if len(got) != 1 || got[0].Name != "nosuchnet" || got[0].Detail == "" {
		t.Errorf("got %v", got)
	}
}
