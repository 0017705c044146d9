package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Manifest is Documentation/twill.yml as a user of such a cluster applies it.
func (s Spec) Manifest() (string, error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(root, "Documentation", "twill.yml"))
	if err != nil {
		return "", err
	}
	s = s.withDefaults()
	const ipv4, ipv6, vxlan = `"Network": "10.244.0.0/16"`, `"EnableIPv6": true, "IPv6Network": "fd00:10:244::/48"`, `{"Type":"vxlan"}`
	families := map[Families]string{
		Dual:     ipv4 + ", " + ipv6,
		IPv4Only: ipv4,
		IPv6Only: `"EnableIPv4": false, ` + ipv6,
	}
	manifest := string(data)
	backend := fmt.Sprintf(`{"Type":%q}`, s.Backend)
	if s.FastPath {
		backend = fmt.Sprintf(`{"Type":%q, "FastPath":true}`, s.Backend)
	}
	for was, now := range map[string]string{ipv4: families[s.Families], vxlan: backend} {
		if !strings.Contains(manifest, was) {
			return "", fmt.Errorf("the manifest Documentation/twill.yml has no %s", was)
		}
		manifest = strings.Replace(manifest, was, now, 1)
	}
	for overlay, wanted := range map[string]bool{
		"network-policy": s.NetworkPolicy, "cluster-network-policy": s.ClusterNetworkPolicy,
	} {
		if !wanted {
			continue
		}
		rights, err := os.ReadFile(filepath.Join(root, "deploy", overlay, "rbac.yaml"))
		if err != nil {
			return "", err
		}
		const flag = "        - --kube-subnet-mgr\n"
		manifest = strings.Replace(manifest, flag, flag+"        - --"+overlay+"\n", 1) + "---\n" + string(rights)
	}
	return manifest, nil
}

// Install applies the manifest and waits until every node is Ready.
func (s Spec) Install(ctx context.Context, progress func(string)) error {
	manifest, err := s.Manifest()
	if err != nil {
		return err
	}
	progress("twill: Documentation/twill.yml")
	if err := s.Apply(ctx, manifest); err != nil {
		return err
	}
	if s.FastPath {
		if err := s.loadFastPath(ctx); err != nil {
			return err
		}
	}
	return s.WaitReady(ctx)
}

// loadFastPath patches the DaemonSet as deploy/fast-path does.
func (s Spec) loadFastPath(ctx context.Context) error {
	root, err := checkout()
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(root, "deploy", "fast-path", "kustomization.yaml"))
	if err != nil {
		return err
	}
	var overlay struct{ Patches []struct{ Patch string } }
	if err := yaml.Unmarshal(data, &overlay); err != nil {
		return fmt.Errorf("read deploy/fast-path: %w", err)
	}
	for _, p := range overlay.Patches {
		if _, err := s.KubectlIn(ctx, strings.NewReader(p.Patch), "--namespace=kube-twill", "patch", "daemonset", "twill",
			"--type=json", "--patch-file=/dev/stdin"); err != nil {
			return err
		}
	}
	return nil
}

// AgentFlag gives the agents a further flag and waits until every node is Ready with it.
func (s Spec) AgentFlag(ctx context.Context, flag string) error {
	patch := fmt.Sprintf(`[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": %q}]`, flag)
	if _, err := s.Kubectl(ctx, "--namespace=kube-twill", "patch", "daemonset", "twill", "--type=json", "--patch="+patch); err != nil {
		return err
	}
	return s.WaitReady(ctx)
}

// Apply is kubectl apply.
func (s Spec) Apply(ctx context.Context, manifest string) error {
	_, err := s.KubectlIn(ctx, strings.NewReader(manifest), "apply", "-f", "-")
	return err
}

// WaitReady waits for every agent and every node.
func (s Spec) WaitReady(ctx context.Context) error {
	if _, err := s.Kubectl(ctx, "-n", "kube-twill", "rollout", "status", "daemonset/twill", "--timeout=120s"); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
	return err
}

// ProbeManifest is a pod on every node that answers and asks, and an iperf3 server in it.
const ProbeManifest = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe, namespace: default, labels: {app: probe}}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers:
      - {name: probe, image: "` + PodImage + `", args: [serve]}
      - {name: iperf3, image: "` + PodImage + `", command: [iperf3, --server]}
`

// Pod is what tests need to know of a pod.
type Pod struct {
	Name, Node string
	Addrs      []netip.Addr
}

// Pods lists the running pods of namespace default with a label.
func (s Spec) Pods(ctx context.Context, selector string) ([]Pod, error) {
	out, err := s.Kubectl(ctx, "get", "pods", "--selector="+selector, "--output=json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				DeletionTimestamp string
			}
			Spec   struct{ NodeName string }
			Status struct {
				Phase  string
				PodIPs []struct{ IP netip.Addr }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("read the list of pods: %w", err)
	}
	var pods []Pod
	for _, i := range list.Items {
		if i.Status.Phase != "Running" || i.Metadata.DeletionTimestamp != "" {
			continue
		}
		p := Pod{Name: i.Metadata.Name, Node: i.Spec.NodeName}
		for _, a := range i.Status.PodIPs {
			p.Addrs = append(p.Addrs, a.IP)
		}
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b Pod) int { return strings.Compare(a.Node+a.Name, b.Node+b.Name) })
	return pods, nil
}

// Reply is what a pod heard of one target, see test/cluster/cmd/pod.
type Reply struct{ Target, Answer, Error string }

// Probe lets a pod ask targets such as tcp://10.244.1.2:8080.
func (s Spec) Probe(ctx context.Context, pod string, targets ...string) ([]Reply, error) {
	out, err := s.Kubectl(ctx, append([]string{"exec", pod, "--", "/pod", "probe"}, targets...)...)
	if err != nil {
		return nil, err
	}
	var replies []Reply
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r Reply
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("read what %s heard: %w", pod, err)
		}
		replies = append(replies, r)
	}
	return replies, nil
}

// Matrix is what came of every pod asking every pod, by each protocol and address family.
type Matrix []Line

// Line is one pair of nodes.
type Line struct {
	From, To string
	Works    []string // targets
	Fails    []Reply
}

// Matrix starts a pod on every node, if there is none, and lets each ask each over TCP, UDP and ICMP. A TCP or UDP
// server has to see the asking pod's own address.
func (s Spec) Matrix(ctx context.Context) (Matrix, error) {
	if err := s.Apply(ctx, ProbeManifest); err != nil {
		return nil, err
	}
	if _, err := s.Kubectl(ctx, "rollout", "status", "daemonset/probe", "--timeout=60s"); err != nil {
		return nil, err
	}
	pods, err := s.Pods(ctx, "app=probe")
	if err != nil {
		return nil, err
	}
	return s.PodMatrix(ctx, pods)
}

// PodMatrix lets each of the pods ask each.
func (s Spec) PodMatrix(ctx context.Context, pods []Pod) (Matrix, error) {
	var m Matrix
	for _, from := range pods {
		var targets []string
		for _, to := range pods {
			targets = append(targets, to.Targets()...)
		}
		replies, err := s.Probe(ctx, from.Name, targets...)
		if err != nil {
			return nil, err
		}
		for _, to := range pods {
			l := Line{From: from.Node, To: to.Node}
			for range to.Targets() {
				l.add(replies[0], from)
				replies = replies[1:]
			}
			m = append(m, l)
		}
	}
	return m, nil
}

// Targets is how the pod can be asked, in each family by each protocol.
func (p Pod) Targets() []string {
	var targets []string
	for _, a := range p.Addrs {
		at := netip.AddrPortFrom(a, 8080).String()
		targets = append(targets, "tcp://"+at, "udp://"+at, "icmp://"+a.String())
	}
	return targets
}

func (l *Line) add(r Reply, from Pod) {
	if r.Error == "" && !strings.HasPrefix(r.Target, "icmp") {
		_, client, _ := strings.Cut(r.Answer, " ")
		if a, err := netip.ParseAddr(client); err != nil || !slices.Contains(from.Addrs, a) {
			r.Error = fmt.Sprintf("the server saw %s, want %v", client, from.Addrs)
		}
	}
	if r.Error != "" {
		l.Fails = append(l.Fails, r)
		return
	}
	l.Works = append(l.Works, r.Target)
}

func (m Matrix) String() string {
	var b strings.Builder
	for _, l := range m {
		fmt.Fprintf(&b, "%-8s → %-8s %d of %d\n", l.From, l.To, len(l.Works), len(l.Works)+len(l.Fails))
	}
	return b.String()
}

// Err names everything that does not work.
func (m Matrix) Err() error {
	var errs error
	for _, l := range m {
		for _, f := range l.Fails {
			errs = errors.Join(errs, fmt.Errorf("%s → %s: %s: %s", l.From, l.To, f.Target, f.Error))
		}
	}
	if len(m) == 0 {
		return errors.New("there are no pods to ask")
	}
	return errs
}

// Await repeats ok until it is true, at most limit.
func (s Spec) Await(ctx context.Context, what string, limit time.Duration, ok func() (bool, error)) error {
	return s.await(ctx, what, limit, ok)
}
