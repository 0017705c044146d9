//go:build soak

package drift

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/twill-net/twill/lab"
	"github.com/twill-net/twill/netstate/attributes"
)

// attribute names one value of a picture.
type attribute struct {
	object string           // its kind and its name
	of     string           // the type of its device
	place  attributes.Place // where netlink has it: package attributes says what place, path and id are
	path   string           // the numbers of those it is nested in, with dots
	id     uint16
	name   string // of what is not netlink's; of an attribute that comes more than once its number
}

func (a attribute) in(place attributes.Place, path string, id uint16) attribute {
	a.place, a.path, a.id = place, path, id
	return a
}

func (a attribute) text(name string) attribute {
	a.name = name
	return a
}

// tables are the product's.
var tables = attributes.All()

// row returns what the product's tables say about an attribute.
func (a attribute) row() (prefix string, row attributes.Attribute, ok bool) {
	if a.name != "" && a.name[0] != '#' {
		return "", row, false
	}
	kind := a.kind()
	for _, t := range tables {
		if t.Object != kind || t.Of != "" && t.Of != a.of || t.Place != a.place || join(t.Path) != a.path {
			continue
		}
		if i := slices.IndexFunc(t.Rows, func(r attributes.Attribute) bool { return r.ID == a.id }); i >= 0 {
			return t.Prefix, t.Rows[i], true
		}
	}
	return "", row, false
}

// kind is what the tables call the object.
func (a attribute) kind() string {
	kind, name, _ := strings.Cut(a.object, " ")
	switch {
	case kind == "link" && a.path == "18.5":
		return "port"
	case kind == "nft":
		kind, _, _ = strings.Cut(name, " ")
		return "nftables " + kind
	}
	return kind
}

func join(path []uint16) string {
	var words []string
	for _, id := range path {
		words = append(words, fmt.Sprint(id))
	}
	return strings.Join(words, ".")
}

func (a attribute) String() string {
	prefix, row, ok := a.row()
	switch {
	case ok:
		return a.object + " " + prefix + row.Name
	case a.name != "" && a.name[0] != '#':
		return a.object + " " + a.name
	}
	return fmt.Sprintf("%s %s %s%d", a.object, [...]string{"attribute", "bit", "field"}[a.place], a.path+".", a.id)
}

// picture is what the kernel and the disk report of a node. It is taken by raw netlink, so that it also has what
// iproute2 does not print. Values are in hex, or text where they are files'.
type picture map[attribute]string

// change is how one attribute differs between two pictures; an empty value: it is not there.
type change struct {
	attribute
	before, after string
}

func (c change) String() string {
	return fmt.Sprintf("%s: %s, was %s", c.attribute, cmp.Or(strings.TrimSpace(c.after), "none"),
		cmp.Or(strings.TrimSpace(c.before), "none"))
}

// diff returns how two pictures differ, in order.
func diff(before, after picture) []change {
	var changes []change
	for a, v := range before {
		if after[a] != v {
			changes = append(changes, change{a, v, after[a]})
		}
	}
	for a, v := range after {
		if _, ok := before[a]; !ok {
			changes = append(changes, change{a, "", v})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return strings.Compare(a.String(), b.String())
	})
	return changes
}

// camera takes pictures of a node.
type camera struct {
	node    *lab.Node
	route   *netlink.Conn
	filter  *netlink.Conn
	devices []string // those that are ours, whose parameters in /proc/sys are in the picture
}

func newCamera(n *lab.Node) (*camera, error) {
	c := &camera{node: n}
	err := n.Do(func() (err error) {
		if c.route, err = netlink.Dial(unix.NETLINK_ROUTE, nil); err != nil {
			return err
		}
		if c.filter, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		return errors.Join(c.route.SetReadBuffer(4<<20), c.filter.SetReadBuffer(4<<20),
			c.route.SetOption(netlink.GetStrictCheck, true))
	})
	return c, err
}

func (c *camera) close() { _ = errors.Join(c.route.Close(), c.filter.Close()) }

// take takes a picture.
func (c *camera) take() (picture, error) {
	p := picture{}
	devs, all, err := c.links()
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		p.add(links, m)
	}
	for _, d := range dumps {
		all, err := c.list(d, devs)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			p.add(d, m)
		}
	}
	if err := c.rules(p); err != nil {
		return nil, err
	}
	if err := c.node.Do(func() error { return c.sysctls(p) }); err != nil {
		return nil, err
	}
	for _, f := range files(c.node) {
		addFile(p, f)
	}
	return p, nil
}

// sysctls adds every parameter of our devices, and what turns forwarding on. It runs in the node's namespace.
func (c *camera) sysctls(p picture) error {
	paths := []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}
	for _, d := range c.devices {
		for _, dir := range []string{"ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"} {
			dir = filepath.Join("/proc/sys/net", dir, d)
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue // no such device, or no IPv6 on it: the picture lacks them
			}
			for _, e := range entries {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	for _, path := range paths {
		if v, err := os.ReadFile(path); err == nil { // stable_secret cannot be read until it is set
			at := attribute{object: "sysctl " + strings.TrimPrefix(path, "/proc/sys/"), name: "value"}
			p[at] = strings.TrimSpace(string(v))
		}
	}
	return nil
}

// addFile adds a file: what it is, and for those that are the same after each write its content.
func addFile(p picture, path string) {
	file := attribute{object: "file " + filepath.Base(path)}
	info, err := os.Lstat(path)
	if err != nil {
		return
	}
	p[file.text("mode")] = info.Mode().String()
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		p[file.text("owner")] = fmt.Sprintf("%d:%d", st.Uid, st.Gid)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return
	}
	lines := slices.Sorted(strings.Lines(string(data))) // subnet.env's order is not said
	if strings.HasSuffix(path, "checkpoint.json") {     // has the time
		lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "{") })
		p[file.text("empty")] = fmt.Sprint(len(data) == 0)
	}
	p[file.text("content")] = strings.Join(lines, "")
}

// tentative reports whether duplicates of an address are still looked for.
func (p picture) tentative() bool {
	for a := range maps.Keys(p) {
		if strings.HasPrefix(a.object, "addr ") && a.place == attributes.Bits && a.id == 6 {
			return true
		}
	}
	return false
}
