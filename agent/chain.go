package agent

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// confList is a CNI config, a list of plugins. Service meshes write their own plugin into the one that a node has.
type confList struct {
	keys    map[string]json.RawMessage // all others than plugins
	plugins []confPlugin
}

type confPlugin struct {
	kind string
	text json.RawMessage
}

// parseList reports false for what is no list of plugins.
func parseList(data []byte) (l confList, ok bool) {
	if json.Unmarshal(data, &l.keys) != nil {
		return l, false
	}
	var texts []json.RawMessage
	if json.Unmarshal(l.keys["plugins"], &texts) != nil || len(texts) == 0 {
		return l, false
	}
	delete(l.keys, "plugins")
	for _, text := range texts {
		var plugin struct{ Type string }
		if json.Unmarshal(text, &plugin) != nil || plugin.Type == "" {
			return l, false
		}
		l.plugins = append(l.plugins, confPlugin{plugin.Type, text})
	}
	return l, true
}

// mergeLists returns what the CNI config on the node should hold, which holds have: all of source, and what others added. earlier
// is the source as it was installed last; what it had and source has not goes. It reports false if have is nothing that
// somebody added to: it does not have the source's first plugin, which makes the pods' interface.
func mergeLists(earlier, source, have []byte) (want []byte, ok bool) {
	ours, ok := parseList(source)
	if !ok {
		return source, true
	}
	there, ok := parseList(have)
	if !ok || !slices.ContainsFunc(there.plugins, ours.plugins[0].sameKind) {
		return nil, false
	}
	was, _ := parseList(earlier)
	keys, plugins := maps.Clone(there.keys), weave(was.plugins, ours.plugins, there.plugins)
	maps.DeleteFunc(keys, func(key string, value json.RawMessage) bool { return sameJSON(was.keys[key], value) })
	for key, value := range ours.keys {
		if !sameJSON(keys[key], value) {
			keys[key] = value
		}
	}
	switch {
	case sameKeys(keys, there.keys) && slices.EqualFunc(plugins, there.plugins, confPlugin.same):
		return have, true
	case sameKeys(keys, ours.keys) && slices.EqualFunc(plugins, ours.plugins, confPlugin.same):
		return source, true
	}
	return confList{keys, plugins}.encode(), true
}

// weave returns ours in their order, and those of there that are somebody else's: where they were between two of ours,
// or else behind all.
func weave(was, ours, there []confPlugin) []confPlugin {
	owner := owners(was, ours, there)
	last := len(ours) - 1
	behind := make([][]confPlugin, len(ours))
	follows := -1
	for i, p := range there {
		switch {
		case owner[i] >= 0:
			follows = owner[i]
		case owner[i] == stale:
		case follows < 0 || !slices.ContainsFunc(owner[i:], func(o int) bool { return o >= 0 }):
			behind[last] = append(behind[last], p)
		default:
			behind[follows] = append(behind[follows], p)
		}
	}
	var all []confPlugin
	for i, p := range ours {
		all = append(append(all, p), behind[i]...)
	}
	return all
}

// What a plugin of the file is that is none of ours.
const (
	foreign = -1 - iota
	stale   // it was ours, or is another form of it
)

// owners returns for each plugin of there which of ours it is, foreign or stale.
func owners(was, ours, there []confPlugin) []int {
	owner, found := slices.Repeat([]int{foreign}, len(there)), make([]bool, len(ours))
	for _, is := range []func(confPlugin, confPlugin) bool{confPlugin.same, confPlugin.sameKind} {
		for i, p := range there {
			for j, o := range ours {
				if owner[i] == foreign && !found[j] && is(p, o) {
					owner[i], found[j] = j, true
				}
			}
		}
	}
	for i, p := range there {
		dropped := slices.ContainsFunc(was, p.sameKind) && !slices.ContainsFunc(ours, p.sameKind)
		again := slices.ContainsFunc(was, p.same) || slices.ContainsFunc(ours, p.same)
		if owner[i] == foreign && (dropped || again || p.sameKind(ours[0])) {
			owner[i] = stale
		}
	}
	return owner
}

func (p confPlugin) same(o confPlugin) bool { return sameJSON(p.text, o.text) }

func (p confPlugin) sameKind(o confPlugin) bool { return p.kind == o.kind }

func sameKeys(a, b map[string]json.RawMessage) bool { return maps.EqualFunc(a, b, sameJSON) }

// sameJSON compares values: those who add a plugin write all of the file in their own way.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil { // a number that is too large
		var c, d bytes.Buffer
		return json.Compact(&c, a) == nil && json.Compact(&d, b) == nil && bytes.Equal(c.Bytes(), d.Bytes())
	}
	return reflect.DeepEqual(x, y)
}

func (l confList) encode() []byte {
	texts := make([]json.RawMessage, len(l.plugins))
	for i, p := range l.plugins {
		texts[i] = p.text
	}
	all := map[string]any{"plugins": texts}
	for key, value := range l.keys {
		all[key] = value
	}
	data, _ := json.MarshalIndent(all, "", "  ") // each part is JSON
	return append(data, '\n')
}
