package facts

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
	"github.com/twill-net/twill/subnet"
)

// conf is what matters here of a CNI config: a list, or one plugin alone.
type conf struct {
	Name    string
	Type    string
	Plugins []struct {
		Type, SubnetFile, DataDir string
		Ipam                      struct{ DataDir string }
	}
}

// defaultCNIDir is looked at when nobody names a directory, and then only if there is a config of ours in it.
const defaultCNIDir = "/etc/cni/net.d"

// cni reads the runtime's config directory.
func cni(s Settings) (doctor.CNI, conf) {
	dir := s.CNIDir
	if dir == "" {
		if _, err := os.Stat(filepath.Join(defaultCNIDir, s.CNIFile)); err != nil {
			return doctor.CNI{}, conf{}
		}
		dir = defaultCNIDir
	}
	c := doctor.CNI{Dir: filepath.Clean(dir), BinDir: s.BinDir, Ours: s.CNIFile, Binaries: map[string]bool{}}
	if _, err := os.Stat(s.BinDir); err != nil && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		c.BinDir = "" // the agent's container does not have the runtime's directory
	}
	var ours conf
	for _, name := range confFiles(dir) {
		file, content := readConf(filepath.Join(dir, name))
		if c.Files = append(c.Files, file); name == s.CNIFile {
			ours = content
		}
	}
	for _, p := range ours.Plugins {
		info, err := os.Stat(filepath.Join(s.BinDir, p.Type))
		c.Binaries[p.Type] = err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	return c, ours
}

// confFiles are the names in the order in which runtimes read them. The doctor's lab keeps other files of the agent
// there too, which are no configs: those without plugins that stand after ours do not matter.
func confFiles(dir string) []string {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

func readConf(path string) (doctor.ConfFile, conf) {
	file := doctor.ConfFile{Name: filepath.Base(path)}
	data, err := os.ReadFile(path)
	if err != nil {
		file.Error = err.Error()
		return file, conf{}
	}
	return parseConf(file, data)
}

func parseConf(file doctor.ConfFile, data []byte) (doctor.ConfFile, conf) {
	var c conf
	err := json.Unmarshal(data, &c)
	if err == nil && len(c.Plugins) == 0 && c.Type == "" {
		err = errors.New("it has no plugins")
	}
	if err != nil {
		file.Error = err.Error()
		return file, conf{}
	}
	for _, p := range c.Plugins {
		file.Plugins = append(file.Plugins, p.Type)
		if p.SubnetFile != "" {
			file.SubnetFile = p.SubnetFile
		}
	}
	return file, c
}

// networksDir is where host-local, and the plugin, keep reservations.
const networksDir = "/var/lib/cni/networks"

// young is the age under which a reservation's pod may still be on its way.
const young = 2 * time.Minute

// reservations counts the reservations and those that no pod has.
func reservations(s Settings, c conf, env subnet.Env) (doctor.IPAM, error) {
	i := doctor.IPAM{Dir: ipamDir(s, c)}
	allocations, err := ipam.Store(i.Dir).Allocations()
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(allocations) == 0 {
		return i, err
	}
	attached, err := wire.AttachedPods()
	if err != nil {
		return i, err
	}
	unknown := attached.Unknown(s.Bridge, allocations)
	for _, h := range allocations {
		for _, a := range h.Addrs {
			if a.Is4() && in(a, env.Subnets) {
				i.Reserved++
			}
		}
		if !attached.Has(h) && !attached.MayHave(h, unknown) && time.Since(h.Since) > young {
			for _, a := range h.Addrs {
				i.Leaked = append(i.Leaked, a.String()+" of "+strings.TrimSpace(h.Owner.Container+" "+h.Owner.Dev))
			}
		}
	}
	if subnet, ok := env.Subnet(netstate.IPv4); ok {
		i.Capacity = max(0, 1<<(32-subnet.Bits())-3) // without the network's address, the gateway and the broadcast
	}
	return i, nil
}

func ipamDir(s Settings, c conf) string {
	if s.IPAMDir != "" {
		return s.IPAMDir
	}
	name, dir := c.Name, networksDir
	if name == "" {
		name = "cbr0"
	}
	for _, p := range c.Plugins {
		for _, d := range []string{p.DataDir, p.Ipam.DataDir} {
			if d != "" && p.Type == "twill" {
				dir = d
			}
		}
	}
	return filepath.Join(dir, name)
}

func in(a netip.Addr, subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Masked().Contains(a) })
}
