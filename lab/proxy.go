package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/host"
)

const (
	// proxyUser is whom every API server lets follow Services.
	proxyUser = "system:kube-proxy"
	// proxyHealthPort is not kube-proxy's usual one, which the agent has.
	proxyHealthPort = 10299
)

// checkProxy returns an error if the lab is to have kube-proxies, and the program is not built.
func (s Spec) checkProxy() error {
	if s.Proxy == "" {
		return nil
	}
	_, err := controlplane.FindBinary("kube-proxy")
	return err
}

// startProxy starts the node's kube-proxy, if the lab has them, and returns when it has written its first rules.
func (n *Node) startProxy(ctx context.Context) error {
	if n.lab.spec.Proxy == "" || n.proxy().Running() {
		return nil
	}
	binary, err := controlplane.FindBinary("kube-proxy")
	if err != nil {
		return err
	}
	config, err := n.writeProxyConfig()
	if err != nil {
		return fmt.Errorf("configure the kube-proxy of %s: %w", n.Name, err)
	}
	p, err := n.Start(host.Command{Path: binary, Args: []string{"--config=" + config, "--hostname-override=" + n.Name},
		Env: n.lab.environment(), Log: filepath.Join(n.lab.dir, "logs", n.Name+"-kube-proxy.log")})
	if err != nil {
		return err
	}
	if err := n.lab.change(func(*state) { n.state.Proxy = p }); err != nil {
		return errors.Join(err, p.Kill())
	}
	return n.waitProxy(ctx, p)
}

func (n *Node) waitProxy(ctx context.Context, p host.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	var last error
	err := poll(ctx, pollServers, func() (bool, error) {
		if !p.Running() {
			return false, errors.New("it has ended")
		}
		_, last = n.ask(ctx, proxyHealthPort, "/healthz")
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the kube-proxy of %s: %w\n%s", n.Name, errors.Join(err, last), tail(p.Log, 8))
	}
	return nil
}

// proxy is the node's kube-proxy process, zero if there is none.
func (n *Node) proxy() (p host.Process) {
	n.lab.view(func(*state) { p = n.state.Proxy })
	return p
}

// writeProxyConfig writes a configuration that leaves what all of the machine shares as it is.
func (n *Node) writeProxyConfig() (string, error) {
	api, err := n.lab.kube()
	if err != nil {
		return "", err
	}
	pods, err := n.lab.spec.config()
	if err != nil {
		return "", err
	}
	var networks []string
	for _, p := range pods.Pools {
		networks = append(networks, p.Network.String())
	}
	server, err := controlplane.OpenAPIServer(api.dir())
	if err != nil {
		return "", err
	}
	syncs := object{"minSyncPeriod": "50ms", "syncPeriod": "10s"}
	config, err := json.MarshalIndent(object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": n.lab.spec.Proxy, "clusterCIDR": strings.Join(networks, ","),
		"clientConnection": object{"kubeconfig": server.KubeconfigFile(proxyUser)},
		"conntrack":        object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
		"iptables":         syncs, "nftables": syncs,
		"healthzBindAddress": fmt.Sprintf("127.0.0.1:%d", proxyHealthPort),
	}, "", "  ")
	if err != nil {
		return "", err
	}
	file := filepath.Join(n.Dir(), "kube-proxy.json")
	return file, os.WriteFile(file, config, 0o644)
}
