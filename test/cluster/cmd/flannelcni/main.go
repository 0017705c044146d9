// Command flannelcni does what flannel's CNI plugin (flannel-io/cni-plugin v1.x) does: it fills in the delegate of its
// config from subnet.env, keeps that under /var/lib/cni/flannel/<container id>, and calls the stock bridge plugin with
// host-local. Tests of the migration wire their old pods with it.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

const stateDir, envFile = "/var/lib/cni/flannel", "/run/flannel/subnet.env"

type object = map[string]any

func main() {
	skel.PluginMainFuncs(
		skel.CNIFuncs{Add: add, Del: del, Check: func(*skel.CmdArgs) error { return nil }},
		version.All,
		"flannel's delegation",
	)
}

func add(args *skel.CmdArgs) error {
	var conf object
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return fmt.Errorf("read the network config: %w", err)
	}
	env, err := readEnv()
	if err != nil {
		return err
	}
	subnet, err := netip.ParsePrefix(env["FLANNEL_SUBNET"]) // the gateway's address with the subnet's length
	if err != nil {
		return fmt.Errorf("FLANNEL_SUBNET %q: want a subnet such as 10.244.1.1/24", env["FLANNEL_SUBNET"])
	}
	delegate, ok := conf["delegate"].(object)
	if !ok {
		delegate = object{}
	}
	var mtu int
	if _, err := fmt.Sscan(env["FLANNEL_MTU"], &mtu); err != nil {
		return fmt.Errorf("FLANNEL_MTU %q: want a number", env["FLANNEL_MTU"])
	}
	delegate["name"], delegate["type"], delegate["cniVersion"] = conf["name"], "bridge", conf["cniVersion"]
	delegate["ipMasq"] = env["FLANNEL_IPMASQ"] == "false"
	delegate["mtu"], delegate["isGateway"] = mtu, true
	delegate["ipam"] = object{"type": "host-local", "ranges": [][]object{{{"subnet": subnet.Masked().String()}}},
		"routes": []object{{"dst": env["FLANNEL_NETWORK"]}}}
	data, err := json.Marshal(delegate)
	if err != nil {
		return fmt.Errorf("encode the delegate: %w", err)
	}
	if err := errors.Join(os.MkdirAll(stateDir, 0o700), os.WriteFile(filepath.Join(stateDir, args.ContainerID), data, 0o600)); err != nil {
		return err
	}
	result, err := invoke.DelegateAdd(context.Background(), "bridge", data, nil)
	if err != nil {
		return err
	}
	return result.Print()
}

func del(args *skel.CmdArgs) error {
	path := filepath.Join(stateDir, args.ContainerID)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), "bridge", data, nil); err != nil {
		return err
	}
	return os.Remove(path)
}

func readEnv() (map[string]string, error) {
	data, err := os.ReadFile(envFile)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range bytes.Lines(data) {
		if key, value, ok := strings.Cut(strings.TrimSpace(string(line)), "="); ok {
			env[key] = value
		}
	}
	return env, nil
}
