package unusual

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/doctor/locate"
	"github.com/twill-net/twill/netstate"
)

const procSysNet = "/proc/sys/net/"

// parameter is a sysctl of a new namespace.
type parameter struct {
	value string
	can   bool // be written in any namespace
}

// below are the directories that are read, and of devices the ones that have a directory for each.
var (
	below     = []string{"ipv4", "ipv6", "bridge", "netfilter", "core", "mpls"}
	perDevice = []string{"ipv4/conf", "ipv6/conf", "ipv4/neigh", "ipv6/neigh", "mpls/conf"}
)

// longest is more than a number, or a few, take. Longer values are no settings.
const longest = 128

// readParameter returns a sysctl's value, words separated by one space. It does without package os, which registers each
// file with the poller.
func readParameter(name string) (value string, writable, ok bool) {
	fd, err := unix.Open(procSysNet+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false, false
	}
	defer unix.Close(fd)
	var text [longest]byte
	n, err := unix.Read(fd, text[:])
	if err != nil || n == longest {
		return "", false, false
	}
	var stat unix.Stat_t
	writable = unix.Fstat(fd, &stat) == nil && stat.Mode&0o200 != 0
	return strings.Join(strings.Fields(string(text[:n])), " "), writable, true
}

// namespaceSysctls returns all that are not about one device.
func namespaceSysctls() map[string]parameter {
	all := map[string]parameter{}
	for _, dir := range below {
		walk(dir, all)
	}
	for _, dir := range perDevice {
		for _, name := range []string{"all", "default"} {
			walk(path.Join(dir, name), all)
		}
	}
	return all
}

func walk(dir string, all map[string]parameter) {
	entries, err := os.ReadDir(procSysNet + dir)
	if err != nil {
		return // this kernel has none
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir() && !slices.Contains(perDevice, name):
			walk(name, all)
		case e.IsDir():
		default:
			if value, can, ok := readParameter(name); ok {
				all[name] = parameter{value, can}
			}
		}
	}
}

// deviceSysctls returns those of one device, by path with the device's name left out: "ipv4/conf/rp_filter".
func deviceSysctls(device string) map[string]parameter {
	all := map[string]parameter{}
	for _, dir := range perDevice {
		found := map[string]parameter{}
		walk(path.Join(dir, device), found)
		for name, p := range found {
			all[path.Join(dir, path.Base(name))] = p
		}
	}
	return all
}

// random are parameters of which no two namespaces have the same value, or whose value is nobody's setting.
var random = []string{"stable_secret", "tcp_fastopen_key", "nf_conntrack_count"}

// inherited are parameters that conf/all hands down to every device when it is written.
var inherited = []string{"ipv4/conf/forwarding", "ipv6/conf/forwarding", "ipv6/conf/disable_ipv6",
	"ipv6/conf/ignore_routes_with_linkdown", "ipv6/conf/addr_gen_mode", "ipv6/conf/force_forwarding",
	"mpls/conf/input"}

// unusualSysctls compares with a new namespace. What follows from another parameter is compared with what follows.
func (s *space) unusualSysctls() (all []locate.Object, err error) {
	f, err := reference()
	if err != nil {
		return nil, err
	}
	c := comparison{fresh: f, initial: initialNamespace(), all: map[string]string{}}
	for _, name := range perDevice {
		for _, i := range inherited {
			if path.Dir(i) == name {
				c.all[i], _, _ = readParameter(path.Join(name, "all", path.Base(i)))
			}
		}
	}
	for name, usual := range f.sysctls {
		if usual.can {
			c.compare(name, c.usual(name, usual.value))
		}
	}
	prints, err := s.fingerprints()
	seen := map[string][]deviceSysctl{}
	for _, l := range s.links {
		key := prints[l.index]
		if l.kind == "" {
			key = l.name // hardware, and lo
		}
		fresh := f.like(l.name, l.kind)
		untold := func(name string) bool { return slices.Contains(f.untold, name) }
		odd, ok := seen[key]
		if !ok || err != nil {
			odd = c.device(l, fresh, func(name string) bool { return !untold(name) })
			seen[key] = odd
		}
		odd = slices.Concat(odd, c.device(l, fresh, untold))
		for _, o := range odd {
			file := path.Join(path.Dir(o.name), l.name, path.Base(o.name))
			c.found = append(c.found, sysctl(file, l.name, o.value, o.usual))
		}
	}
	slices.SortFunc(c.found, func(a, b locate.Object) int { return strings.Compare(a.Text, b.Text) })
	return c.found, err
}

// deviceSysctl is an unusual parameter of a device, whose name is left out.
type deviceSysctl struct{ name, value, usual string }

// device reads parameters of one device.
func (c *comparison) device(l link, fresh sample, which func(string) bool) (odd []deviceSysctl) {
	for name, p := range fresh.sysctls {
		if !p.can || !which(name) || slices.Contains(random, path.Base(name)) {
			continue
		}
		value, _, ok := readParameter(path.Join(path.Dir(name), l.name, path.Base(name)))
		if usual := c.usualOf(l, name, p.value); ok && !slices.Contains(usual, value) {
			odd = append(odd, deviceSysctl{name, value, usual[0]})
		}
	}
	return odd
}

// comparison collects what differs.
type comparison struct {
	fresh   *fresh
	initial bool
	all     map[string]string // what conf/all hands down
	found   []locate.Object
}

// compare notes a parameter that is not as usual; the first usual value is the one to go back to.
func (c *comparison) compare(name string, usual []string) {
	if slices.Contains(random, path.Base(name)) || len(usual) == 0 {
		return
	}
	value, _, ok := readParameter(name)
	if ok && !slices.Contains(usual, value) {
		c.found = append(c.found, sysctl(name, "", value, usual[0]))
	}
}

// usual returns what a parameter of the namespace may be.
func (c *comparison) usual(name, value string) []string {
	dir, key := path.Dir(name), path.Base(name)
	if device := path.Base(dir); device == "all" || device == "default" {
		short := path.Join(path.Dir(dir), key)
		switch {
		case name == "ipv4/conf/all/forwarding":
			return nil // the same as ip_forward
		case name == "ipv4/conf/all/accept_redirects" && c.altered("ipv4/ip_forward"):
			return []string{opposite(value)} // which ip_forward sets, too
		case device == "default" && c.all[short] != "":
			return []string{value, c.all[short]} // some are handed down to it, too
		}
		if path.Dir(dir) == "ipv4/conf" {
			return c.compiled(device, key, value)
		}
	}
	return []string{value}
}

func (c *comparison) altered(name string) bool {
	value, _, ok := readParameter(name)
	return ok && value != c.fresh.sysctls[name].value
}

func opposite(value string) string {
	if value == "0" {
		return "1"
	}
	return "0"
}

// usualOf returns what a device's parameter may be.
func (c *comparison) usualOf(l link, name, value string) []string {
	if name == "ipv6/conf/mtu" {
		return []string{strconv.Itoa(l.mtu)}
	}
	if name == "ipv6/conf/addr_gen_mode" && l.Type() == unix.ARPHRD_NONE {
		return []string{value, "3"} // which the kernel sets when a device without hardware addresses has a carrier
	}
	all := c.all[name]
	switch dir, key := path.Dir(name), path.Base(name); {
	case all != "" && name == "ipv4/conf/forwarding":
		return []string{all} // of IPv6 that of all devices alone decides
	case all != "":
		return []string{value, all}
	case dir == "ipv4/conf":
		return c.compiled(l.name, key, value)
	}
	return []string{value}
}

// compiledIn are the parameters of ipv4/conf that are not 0 in the kernel's source. A new namespace has those of the
// machine's first instead, where an administrator may have altered them, and an older namespace has what they were then.
var compiledIn = map[string]string{"accept_redirects": "1", "send_redirects": "1", "secure_redirects": "1",
	"shared_media": "1", "igmpv2_unsolicited_report_interval": "10000", "igmpv3_unsolicited_report_interval": "1000",
	"arp_evict_nocarrier": "1", "accept_source_route": "1"}

func (c *comparison) compiled(device, key, value string) []string {
	source, ok := compiledIn[key]
	if !ok || device == "all" && key == "accept_source_route" {
		source = "0"
	}
	if c.initial {
		return []string{source}
	}
	return []string{value, source}
}

// initialNamespace reports whether the thread is in the machine's first namespace, which has more parameters.
func initialNamespace() bool {
	return unix.Access(procSysNet+"core/netdev_max_backlog", unix.F_OK) == nil
}

// sysctl is an object as sysctl(8) prints it, which writes a dot in a device's name as a slash.
func sysctl(file, device, value, usual string) locate.Object {
	name := "net." + swapDots.Replace(file)
	o := locate.Object{Kind: locate.Sysctl, Dev: device, Part: name, Value: value, Key: netstate.Sysctl{Name: "net/" + file}.Key(),
		Text: fmt.Sprintf("%s = %s", name, value), Usual: usual}
	if strings.Contains(usual, " ") || usual == "" {
		usual = "'" + usual + "'"
	}
	o.Fix = fmt.Sprintf("sysctl -w %s=%s", name, usual)
	return o
}

// swapDots makes a file's name of a parameter's, and the other way round.
var swapDots = strings.NewReplacer("/", ".", ".", "/")
