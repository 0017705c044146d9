package services

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/host"
	"github.com/twill-net/twill/internal/testall"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/lab/labtest"
)

// The port that the servers listen on, and the one that a Service has for it.
const (
	serverPort  = 8080
	servicePort = 80
)

// world is a lab with an API server and kube-proxies.
type world struct {
	*lab.Lab
	program string // twillctl
	proxies map[string]host.Process
}

func newWorld(t *testing.T) *world {
	testall.Needs(t, "a built kube-proxy")
	w := &world{program: filepath.Join(labtest.BinDir(t), "twillctl"), proxies: map[string]host.Process{}}
	w.Lab = labtest.StartDefault(t, lab.Spec{Name: "services", Nodes: 3, Pods: 2, Store: lab.Kube})
	if _, err := w.Converge(t.Context(), testwait.Limit); err != nil {
		t.Fatal(err)
	}
	w.create(t, "/api/v1/namespaces", object{"metadata": object{"name": "shop"}})
	w.create(t, "/api/v1/namespaces/shop/serviceaccounts", object{"metadata": object{"name": "default"}})
	return w
}

// proxy starts a real kube-proxy on a node, which replaces the rules that another mode has left.
func (w *world) proxy(t *testing.T, node, mode string) {
	t.Helper()
	binary, err := controlplane.FindBinary("kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	n := w.node(t, node)
	file := filepath.Join(t.TempDir(), "proxy.json")
	config, err := json.Marshal(object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": mode, "clusterCIDR": "10.244.0.0/16", "hostnameOverride": node,
		"clientConnection": object{"kubeconfig": w.Kubeconfig()},
		"conntrack":        object{"maxPerCore": 0, "min": 0},
		"iptables":         object{"syncPeriod": "10s", "minSyncPeriod": "50ms"},
		"nftables":         object{"syncPeriod": "10s", "minSyncPeriod": "50ms"},
		"oomScoreAdj":      0, "healthzBindAddress": "127.0.0.1:10299",
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	// By the mark the lab's end finds the process, also after a crash.
	env := append(os.Environ(), "TWILL_LAB="+filepath.Join(lab.DefaultDir, w.Name()))
	p, err := n.Start(host.Command{Path: binary, Args: []string{"--config=" + file, "--hostname-override=" + node}, Env: env,
		Log: filepath.Join(t.TempDir(), "kube-proxy.log")})
	if err != nil {
		t.Fatal(err)
	}
	w.proxies[node] = p
	t.Cleanup(func() {
		_ = p.Signal(unix.SIGCONT)
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(p.Log); err == nil && t.Failed() {
			t.Logf("kube-proxy of %s:\n%s", node, log[max(0, len(log)-4000):])
		}
	})
}

// pause keeps a node's kube-proxy from noticing anything until the test ends.
func (w *world) pause(t *testing.T, node string) {
	t.Helper()
	if err := w.proxies[node].Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.proxies[node].Signal(unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) node(t *testing.T, name string) *lab.Node {
	t.Helper()
	for _, n := range w.Nodes() {
		if n.Name == name {
			return n
		}
	}
	t.Fatalf("no node %s", name)
	return nil
}

func (w *world) pod(t *testing.T, id string) *lab.Pod {
	t.Helper()
	for _, p := range w.Pods() {
		if p.ID() == id {
			return p
		}
	}
	t.Fatalf("no pod %s", id)
	return nil
}

type object = map[string]any

// create makes an object, and removes it when the test ends. A path ends in the plural of its kind.
func (w *world) create(t *testing.T, path string, o object) {
	t.Helper()
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.API(t.Context(), http.MethodPost, path, body); err != nil {
		t.Fatal(err)
	}
	name := o["metadata"].(object)["name"].(string)
	if name == "shop" || name == "default" {
		return // they end with the lab: no controller runs that could end a namespace
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := w.API(ctx, http.MethodDelete, path+"/"+name+"?gracePeriodSeconds=0", nil); err != nil {
			t.Error(err)
		}
	})
}

const (
	servicesPath = "/api/v1/namespaces/shop/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
)

// service makes a Service with one port, and what more says.
func (w *world) service(t *testing.T, name string, more object) {
	t.Helper()
	spec := object{"ports": []object{{"name": "http", "port": servicePort, "targetPort": serverPort, "protocol": "TCP"}}}
	for k, v := range more {
		spec[k] = v
	}
	w.create(t, servicesPath, object{"metadata": object{"name": name}, "spec": spec})
}

// backend is an endpoint of a slice.
type backend struct {
	pod        string
	conditions object
}

// endpoints writes an EndpointSlice for one port, as the controller manager would.
func (w *world) endpoints(t *testing.T, name string, port object, backends ...backend) {
	t.Helper()
	var all []object
	for _, b := range backends {
		p := w.pod(t, b.pod)
		conditions := b.conditions
		if conditions == nil {
			conditions = object{"ready": true, "serving": true, "terminating": false}
		}
		all = append(all, object{"addresses": []string{p.Addrs[0].String()}, "nodeName": p.Node.Name, "conditions": conditions,
			"targetRef": object{"kind": "Pod", "namespace": "shop", "name": strings.ReplaceAll(b.pod, "/", "-")}})
	}
	w.create(t, slicesPath, object{"addressType": "IPv4", "endpoints": all, "ports": []object{port},
		"metadata": object{"name": name + "-1", "labels": object{"kubernetes.io/service-name": name}}})
}

var httpPort = object{"name": "http", "port": serverPort, "protocol": "TCP"}

// clusterIP returns the address that the API server gave to a Service.
func (w *world) clusterIP(t *testing.T, name string) netip.Addr {
	t.Helper()
	data, err := w.API(t.Context(), http.MethodGet, servicesPath+"/"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Spec struct{ ClusterIP netip.Addr }
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	return s.Spec.ClusterIP
}

// serve answers TCP connections at an address of a pod until the test ends.
func (w *world) serve(t *testing.T, pod, address string) {
	t.Helper()
	var l net.Listener
	err := w.pod(t, pod).Do(func() (err error) {
		l, err = net.Listen("tcp4", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}()
		}
	}()
}

// hang listens at an address of a pod, and accepts nothing: one connection waits, and its backlog has room for no other.
func (w *world) hang(t *testing.T, pod, address string) {
	t.Helper()
	var l net.Listener
	var waits net.Conn
	err := w.pod(t, pod).Do(func() (err error) {
		if l, err = net.Listen("tcp4", address); err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		raw, err := l.(*net.TCPListener).SyscallConn()
		if err != nil {
			return err
		}
		var listenErr error
		err = raw.Control(func(fd uintptr) { listenErr = unix.Listen(int(fd), 0) })
		if err = errors.Join(err, listenErr); err != nil {
			return err
		}
		waits, err = net.Dial("tcp4", "127.0.0.1"+address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { waits.Close() })
}

// serveUDP takes datagrams in a pod, and answers them or not.
func (w *world) serveUDP(t *testing.T, pod string, port int, answers bool) {
	t.Helper()
	var conn net.PacketConn
	err := w.pod(t, pod).Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		for buf := make([]byte, 1<<12); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answers {
				_, _ = conn.WriteTo(buf[:n], from)
			}
		}
	}()
}

// traced is what the tests look at of the trace's JSON.
type traced struct {
	Services []report `json:"services"`
	Problem  *problem `json:"problem"`
	code     int
	text     string
}

type report struct {
	Sent      int       `json:"sent"`
	Answered  int       `json:"answered"`
	Way       string    `json:"way"`
	Sticks    string    `json:"sticks"`
	Endpoints []chosen  `json:"endpoints"`
	Problems  []problem `json:"problems"`
	Unread    []string  `json:"unread"`
}

type chosen struct {
	To                        netip.AddrPort `json:"to"`
	Chosen, Tracked, Answered int
	Rule, Because             string
	Seen                      []string
}

type problem struct{ Code, Place, Text, Fix, Rule string }

// problems returns all of them.
func (r traced) problems() (all []problem) {
	if r.Problem != nil {
		all = append(all, *r.Problem)
	}
	for _, s := range r.Services {
		all = append(all, s.Problems...)
	}
	return all
}

// trace asks twillctl.
func (w *world) trace(t *testing.T, src, dst string) (r traced) {
	t.Helper()
	r.text, r.code = w.ask(t, "trace", src, dst)
	if err := json.Unmarshal([]byte(r.text), &r); err != nil {
		t.Fatalf("%v: %s", err, r.text)
	}
	return r
}

// ask returns what twillctl prints about the lab as JSON, and its exit code.
func (w *world) ask(t *testing.T, command string, args ...string) (text string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testwait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.program, append([]string{command, "--lab", w.Name(), "--output=json"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if code > 1 {
		t.Fatalf("%s %v: %s", command, args, stderr.String())
	}
	return stdout.String(), code
}

// settled traces until kube-proxy has written its rules.
func (w *world) settled(t *testing.T, src, dst string, ok func(traced) bool) (r traced) {
	t.Helper()
	testwait.Nil(t, "kube-proxy's rules for "+dst, func() error {
		if r = w.trace(t, src, dst); !ok(r) {
			return fmt.Errorf("exit code %d: %s", r.code, r.text)
		}
		return nil
	})
	return r
}
