package facts

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// module is a part of the kernel that may be built in, a file, or missing.
type module struct{ name, config string }

// needed returns the modules that a network needs. wireguard uses a TUN device if the kernel has no WireGuard.
func needed(network subnet.Config) []module {
	all := []module{{"bridge", "CONFIG_BRIDGE"}, {"veth", "CONFIG_VETH"}}
	switch strings.ToLower(network.Backend) {
	case "vxlan":
		all = append(all, module{"vxlan", "CONFIG_VXLAN"})
	case "ipip":
		tunnels := map[netstate.Family]module{
			netstate.IPv4: {"ipip", "CONFIG_NET_IPIP"},
			netstate.IPv6: {"ip6_tunnel", "CONFIG_IPV6_TUNNEL"},
		}
		for _, p := range network.Pools {
			all = append(all, tunnels[p.Family()])
		}
	case "udp", "wireguard":
		all = append(all, module{"tun", "CONFIG_TUN"})
	}
	return all
}

// missing returns the modules that this kernel cannot have. If neither the kernel's config nor its files can be
// read, as in a container, it returns none.
func missing(all []module, release string) []doctor.NoModule {
	config := kernelConfig(release)
	files, known := moduleFiles(release)
	var none []doctor.NoModule
	for _, m := range all {
		_, err := os.Stat("/sys/module/" + m.name)
		built, asked := config[m.config]
		switch {
		case err == nil || built == "y":
		case len(config) > 0 && !asked:
			none = append(none, doctor.NoModule{Name: m.name, Detail: m.config + " is not set"})
		case known && !files[m.name]:
			none = append(none, doctor.NoModule{Name: m.name, Detail: "no file of it in /lib/modules/" + release})
		}
	}
	return none
}

// kernelConfig returns the options that the kernel was built with, "y" or "m"; empty if they cannot be read.
func kernelConfig(release string) map[string]string {
	values := map[string]string{}
	var r io.Reader
	if f, err := os.Open("/proc/config.gz"); err == nil {
		defer f.Close()
		if z, err := gzip.NewReader(f); err == nil {
			r = z
		}
	} else if f, err := os.Open("/boot/config-" + release); err == nil {
		defer f.Close()
		r = f
	}
	if r == nil {
		return values
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			values[name] = value
		}
	}
	return values
}

// moduleFiles returns the modules that depmod(8) lists, "kernel/drivers/net/vxlan/vxlan.ko.xz: …", and those that are
// built in. known reports whether there is such a list.
func moduleFiles(release string) (names map[string]bool, known bool) {
	names = map[string]bool{}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		data, err := os.ReadFile(filepath.Join("/lib/modules", release, list))
		if err != nil {
			continue
		}
		known = true
		for line := range strings.Lines(string(data)) {
			path, _, _ := strings.Cut(strings.TrimSpace(line), ":")
			name, _, _ := strings.Cut(filepath.Base(path), ".ko")
			names[strings.ReplaceAll(name, "-", "_")] = true
		}
	}
	return names, known
}
