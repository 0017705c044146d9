package facts

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/agent/install"
	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/plugin/ipam"
	"github.com/twill-net/twill/plugin/wire"
)

// conf is a CNI config, a list or one plugin alone, as far as it matters here.
type conf struct {
	Name    string
	Type    string
	Plugins []struct {
		Type, SubnetFile, DataDir string
		Ipam                      struct{ DataDir string }
	}
}

// defaultCNIDir is looked at if nobody names a directory and it has a config of Twill's.
const defaultCNIDir = "/etc/cni/net.d"

// runtime reads what the container runtime finds: its configs, plugins, and the reserved addresses.
func (g *gathering) runtime() {
	var ours conf
	g.CNI, ours = g.cni(g.options.conflist(g.settings))
	g.CNI.BinDir = g.settings.BinDir
	for _, p := range ours.Plugins {
		info, err := os.Stat(filepath.Join(g.CNI.BinDir, p.Type))
		g.CNI.Binaries[p.Type] = g.isHidden("the CNI plugin "+p.Type, err) ||
			err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	if _, err := os.Stat(g.CNI.BinDir); err != nil && os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		g.CNI.BinDir = "" // the agent's container does not have the runtime's directory
	}
	g.Reservations.Dir = cmp.Or(g.settings.Reservations, reservationsDir(ours))
	if err := g.reservations(); err != nil {
		g.unread("reservations", err)
	}
}

// cni reads the config directory, and returns Twill's config in it.
func (g *gathering) cni(dir, name string) (doctor.CNI, conf) {
	if dir == "" {
		if _, err := os.Stat(filepath.Join(defaultCNIDir, name)); err != nil {
			return doctor.CNI{}, conf{}
		}
		dir = defaultCNIDir
	}
	c := doctor.CNI{Dir: filepath.Clean(dir), Ours: name, Binaries: map[string]bool{}}
	var ours conf
	files, err := confFiles(dir)
	if g.isHidden("the container runtime's directory of CNI configs", err) {
		return doctor.CNI{}, conf{}
	}
	for _, f := range files {
		file, content := g.readConf(filepath.Join(dir, f))
		if c.Files = append(c.Files, file); f == name {
			ours = content
		}
	}
	plugin := "twill"
	if len(ours.Plugins) > 0 {
		plugin = ours.Plugins[0].Type
	}
	for i := range c.Files {
		c.Files[i].Carries = install.Carries(filepath.Join(dir, c.Files[i].Name), plugin)
	}
	return c, ours
}

// confFiles returns the names of configs in the order in which runtimes read them.
func confFiles(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir) // sorted
	for _, e := range entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (g *gathering) readConf(path string) (doctor.ConfFile, conf) {
	file := doctor.ConfFile{Name: filepath.Base(path)}
	data, err := os.ReadFile(path)
	if file.Hidden = g.isHidden("a CNI config", err); file.Hidden {
		return file, conf{}
	}
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

// networksDir is where host-local and Twill's plugin keep reservations.
const networksDir = "/var/lib/cni/networks"

// young is the age up to which a reservation's pod may not be attached yet.
const young = 2 * time.Minute

// reservations counts the reserved addresses and those that no pod has.
func (g *gathering) reservations() error {
	r := &g.Reservations
	allocations, err := ipam.Store(r.Dir).Allocations()
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(allocations) == 0 {
		return err
	}
	attached, err := wire.AttachedPods()
	if err != nil {
		return err
	}
	unknown := attached.Unknown(g.Bridge, allocations)
	for _, h := range allocations {
		if attached.Has(h) || attached.MayHave(h, unknown) || time.Since(h.Since) <= young {
			continue
		}
		for _, a := range h.Addrs {
			r.Leaked = append(r.Leaked, a.String()+" of "+strings.TrimSpace(h.Owner.Container+" "+h.Owner.Dev))
		}
	}
	subnet, ok := g.Env.Env.Subnet(netstate.IPv4)
	if !ok {
		return nil
	}
	usage, err := ipam.Store(r.Dir).SubnetUsage([]netip.Prefix{subnet})
	for _, u := range usage {
		r.Reserved, r.Capacity = u.Used, u.All
	}
	return err
}

// reservationsDir returns the directory that a CNI config implies.
func reservationsDir(c conf) string {
	dir := networksDir
	for _, p := range c.Plugins {
		if p.Type == "twill" {
			dir = cmp.Or(p.Ipam.DataDir, p.DataDir, dir)
		}
	}
	return filepath.Join(dir, cmp.Or(c.Name, "cbr0"))
}
