package causes

import (
	"fmt"
	"strings"
)

// drawSysctl draws a parameter of the kernel that is altered.
func drawSysctl(d *draw) *cause {
	p := d.somewhere()
	key := ""
	switch d.pick("parameter of", "namespace", "namespace", "device", "device", "device", "neighbours") {
	case "namespace":
		kind := "node"
		if p.pod != nil {
			kind = "pod"
		}
		keys := d.world.sysctls[kind]
		key = keys[d.IntN(len(keys))]
	case "device":
		keys := d.world.sysctls["device"]
		key = fmt.Sprintf(keys[d.IntN(len(keys))], d.ofDevice(p, "all", "default", "lo"))
	case "neighbours":
		keys := d.world.sysctls["neighbour"]
		key = fmt.Sprintf(keys[d.IntN(len(keys))], d.ofDevice(p, "default"))
	}
	return alteredSysctl(p.name, key, d.pick("parameter becomes", "other", "other", "other", "zero", "less", "more",
		"negative"))
}

// ofDevice is mostly a device that packets pass.
func (d *draw) ofDevice(p place, others ...string) string {
	if d.chance(25) {
		return d.pick("no device", others...)
	}
	return d.device(p)
}

// values are what a parameter becomes, as the shell computes it from $OLD. A boolean's other value is the other one; a
// number's is one more.
var values = map[string]string{
	"other":    `$(( OLD == 0 ? 1 : OLD == 1 ? 0 : OLD + 1 ))`,
	"zero":     "0",
	"less":     `$(( OLD / 10 ))`,
	"more":     `$(( OLD * 10 + 2 ))`,
	"negative": "-1",
}

func alteredSysctl(in, key, becomes string) *cause {
	path := "/proc/sys/" + key
	return &cause{place: in, tokens: [][]string{dotted(key)}, steps: []step{{in: in, before: "cat " + path,
		do:   fmt.Sprintf(`V=%s; [ "$V" != "$OLD" ] && echo "$V" > %s`, values[becomes], path),
		undo: `echo "$OLD" > ` + path}}}
}

// dotted are the ways that a key is written: the dots of a device's name may be kept, or be slashes.
func dotted(key string) []string {
	plain := strings.ReplaceAll(key, "/", ".")
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, ".", "/")
	}
	return []string{plain, strings.Join(parts, ".")}
}
