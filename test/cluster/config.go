package cluster

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/internal/controlplane"
)

// containerdConfig needs no CAP_SYS_RESOURCE (restrict_oom_score_adj) and no registry (pinned sandbox).
const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + PodImage + `"
`

// maxPods leaves room in a /24 for the pods of a test with 110 of them and the cluster's own.
const maxPods = 150

type object = map[string]any

// kubeletConfig is a KubeletConfiguration that asks nothing of cgroups: nodes share the machine's.
func (s Spec) kubeletConfig() object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true},
			"x509": object{"clientCAFile": filepath.Join(s.APIDir(), "ca.crt")}},
		"authorization":               object{"mode": "Webhook"},
		"containerRuntimeEndpoint":    "unix:///run/containerd/containerd.sock",
		"cgroupDriver":                "cgroupfs",
		"cgroupsPerQOS":               false,
		"enforceNodeAllocatable":      []string{},
		"failCgroupV1":                false,
		"failSwapOn":                  false,
		"oomScoreAdj":                 0,
		"maxPods":                     maxPods,
		"podLogsDir":                  "/var/log/pods",
		"resolvConf":                  "",
		"clusterDNS":                  []string{s.DNSAddress().String()},
		"clusterDomain":               "cluster.local",
		"imageGCHighThresholdPercent": 100,
		"serializeImagePulls":         false,
		"registryPullQPS":             0,
		"kubeAPIQPS":                  100, "kubeAPIBurst": 200,
		"crashLoopBackOff":          object{"maxContainerRestartPeriod": "1s"},
		"nodeStatusUpdateFrequency": "5s",
		"evictionHard": object{
			"memory.available":  "0%",
			"nodefs.available":  "0%",
			"nodefs.inodesFree": "0%",
			"imagefs.available": "0%",
		},
	}
}

// proxyConfig leaves the connection tracking table alone: its size is the machine's.
func (s Spec) proxyConfig(node, kubeconfig string) object {
	return object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": s.ProxyMode, "clusterCIDR": join(s.inFamilies(PodNetworks)), "hostnameOverride": node,
		"clientConnection": object{"kubeconfig": kubeconfig},
		"conntrack":        object{"maxPerCore": 0, "min": 0},
		"iptables":         object{"syncPeriod": "30s", "minSyncPeriod": "100ms"},
		"nftables":         object{"syncPeriod": "30s", "minSyncPeriod": "100ms"},
		"oomScoreAdj":      0,
	}
}

func join[T fmt.Stringer](values []T) string {
	var all []string
	for _, v := range values {
		all = append(all, v.String())
	}
	return strings.Join(all, ",")
}

func addresses(addrs []netip.Addr) string { return join(addrs) }

// writeKubeconfig makes a kubeconfig with a client certificate, for the API server at the given URL.
func (s Spec) writeKubeconfig(path, server, user string, groups ...string) error {
	cert, key, err := controlplane.IssueClient(s.APIDir(), user, groups...)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(filepath.Join(s.APIDir(), "ca.crt"))
	if err != nil {
		return err
	}
	b64 := base64.StdEncoding.EncodeToString
	name := "twill-" + s.Name
	return writeJSON(path, object{
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []object{
			{"name": name, "cluster": object{"server": server, "certificate-authority-data": b64(ca)}},
		},
		"users": []object{
			{"name": name, "user": object{"client-certificate-data": b64(cert), "client-key-data": b64(key)}},
		},
		"contexts": []object{{"name": name, "context": object{"cluster": name, "user": name}}},
	})
}

// apiURL is the API server as nodes reach it: it runs in the first node's network, as kubeadm's does, so that it can
// reach pods.
func (s Spec) apiURL() string {
	return fmt.Sprintf("https://%s", netip.AddrPortFrom(s.Underlay(1)[0], apiPort))
}

// writeJSON writes a file that only root reads; YAML readers take JSON.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return os.WriteFile(path, data, 0o600)
}
