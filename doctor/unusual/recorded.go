package unusual

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"
)

// record is what a kernel's new network namespace was seen to have, for who may not make one: that takes CAP_SYS_ADMIN, which
// an agent's container does not have.
type record struct {
	Release string
	Rules   map[byte][]string
	Sysctls map[string]string // those that can be written
	Device  map[string]string // those of a device
	Untold  []string
	Devices map[string]recorded // lo, those of each namespace, and one of each kind
}

// recorded is a device: its messages, and the sysctls that it has not from Device.
type recorded struct {
	Link, Port []byte // Port is nil: no bridge takes it
	Sysctls    map[string]string
}

//go:embed recorded.json
var recordedJSON []byte

// recordedKinds are the kinds of devices that are recorded, if the kernel has them.
var recordedKinds = []string{"veth", "bridge", "vxlan", "tun", "dummy", "ipip", "sit", "wireguard", "vlan", "macvlan", "ipvlan"}

// ofMachine are sysctls whose value in a new namespace is the machine's: by its memory, or as its administrator chose.
var ofMachine = regexp.MustCompile(`_(rmem|wmem|buckets|syn_backlog|entries|limit_output_bytes|congestion_control)$|^core/|^netfilter/nf_log/`)

// replay returns the reference that is recorded.
func replay() (*fresh, error) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, errors.New("what a new network namespace has is recorded for little-endian machines only")
	}
	var r record
	if err := json.Unmarshal(recordedJSON, &r); err != nil {
		return nil, fmt.Errorf("read recorded.json: %w", err)
	}
	f := &fresh{namespace: -1, release: r.Release, rules: r.Rules, untold: r.Untold, sysctls: writable(r.Sysctls), samples: map[string]sample{}}
	for name, d := range r.Devices {
		s := sample{sysctls: writable(r.Device)}
		maps.Copy(s.sysctls, writable(d.Sysctls))
		var err error
		if s.link, err = parseLink(d.Link); err == nil && d.Port != nil {
			s.port, err = parseLink(d.Port)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of recorded.json: %w", name, err)
		}
		f.samples[name] = s
	}
	f.lo = f.samples["lo"]
	return f, nil
}

// note says that it is recorded.
func (f *fresh) note() string {
	return fmt.Sprintf("devices and sysctls are compared with those of Linux %s, not of this kernel: that takes CAP_SYS_ADMIN", f.release)
}

func writable(values map[string]string) map[string]parameter {
	all := map[string]parameter{}
	for name, value := range values {
		all[name] = parameter{value, true}
	}
	return all
}

// record returns what recorded.json is to have.
func (f *fresh) record() record {
	r := record{Release: kernelVersion(), Rules: f.rules, Sysctls: values(f.sysctls), Untold: slices.Sorted(slices.Values(f.untold)),
		Device: values(f.like("", "veth").sysctls), Devices: map[string]recorded{}}
	maps.DeleteFunc(r.Sysctls, func(name, _ string) bool { return ofMachine.MatchString(name) })
	all := map[string]sample{"lo": f.lo}
	for _, kind := range recordedKinds {
		if s := f.like("", kind); s.link.kind == kind {
			all[kind] = s
		}
	}
	for name, s := range all {
		d := recorded{Link: s.link.Link, Port: s.port.Link, Sysctls: values(s.sysctls)}
		maps.DeleteFunc(d.Sysctls, func(name, value string) bool { return r.Device[name] == value })
		r.Devices[name] = d
	}
	return r
}

// values returns those of parameters that are somebody's settings.
func values(all map[string]parameter) map[string]string {
	found := map[string]string{}
	for name, p := range all {
		if p.can && !slices.Contains(random, path.Base(name)) {
			found[name] = p.value
		}
	}
	return found
}

// kernelVersion returns the first two numbers of this kernel's version.
func kernelVersion() string {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) == nil {
		_, _ = fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	}
	return fmt.Sprintf("%d.%d", major, minor)
}
