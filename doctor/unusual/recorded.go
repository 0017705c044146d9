package unusual

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
