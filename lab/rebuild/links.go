package rebuild

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// making are the words after "ip link add" that make a device; none if it is none that can be made from a report.
func (l link) making() []string {
	var d struct {
		ID       int    `json:"id"`
		Local    string `json:"local"`
		Local6   string `json:"local6"`
		Port     int    `json:"port"`
		Learning bool   `json:"learning"`
		Mode     string `json:"mode"`
	}
	if len(l.Info.Data) > 0 && json.Unmarshal(l.Info.Data, &d) != nil {
		return nil
	}
	var text string
	ok := true
	switch l.Info.Kind {
	case "bridge":
		text, ok = words("", l.Name, "type", "bridge")
	case "vxlan":
		learning := map[bool]string{true: "learning", false: "nolearning"}[d.Learning]
		text, ok = words("", l.Name, "type", "vxlan", "id", strconv.Itoa(d.ID), "dev", l.Below, "local", d.Local+d.Local6,
			"dstport", number(d.Port), "", learning)
	case "veth":
		if l.Below != "" { // the other end is on the node, too
			text, ok = words("", l.Name, "type", "veth", "peer", l.Below)
			text = strings.Replace(text, " peer ", " peer name ", 1)
		}
	case "macvlan":
		text, ok = words("link", l.Below, "name", l.Name, "type", "macvlan", "mode", d.Mode)
	}
	if !ok {
		return nil
	}
	return strings.Fields(text)
}

func find(links []link, name string) (link, bool) {
	i := slices.IndexFunc(links, func(l link) bool { return l.Name == name })
	if i < 0 {
		return link{}, false
	}
	return links[i], true
}

// isMachine reports whether a device is the machine's: it stays.
func (l link) isMachine() bool { return l.Name == "lo" || l.Type != "ether" && l.Info.Kind == "" }

// replaceLinks deletes the devices that the report does not have, and makes those that the lab does not.
func (p *patient) replaceLinks(ctx context.Context, want, have []link) {
	var gone, made []string
	for _, h := range have {
		w, ok := find(want, h.Name)
		if h.isMachine() || ok && slices.Equal(w.making(), h.making()) {
			continue
		}
		gone = append(gone, h.Name)
		p.do(ctx, "ip", "link", "del", h.Name)
	}
	for _, w := range want {
		_, ok := find(have, w.Name)
		making := w.making()
		switch {
		case w.isMachine() || ok && !slices.Contains(gone, w.Name) || slices.Contains(made, w.Name):
		case len(making) == 0:
			p.leave("device %s", w.Name)
		default:
			p.do(ctx, append([]string{"ip", "link", "add"}, making...)...)
			if made = append(made, w.Name); w.Info.Kind == "veth" {
				made = append(made, w.Below)
			}
		}
	}
}

// setLinks gives devices their master, MAC, mark, MTU and state. A bridge's MTU comes after that of its ports.
func (p *patient) setLinks(ctx context.Context, want, have []link) {
	slices.SortStableFunc(want, func(a, b link) int { return strings.Compare(b.Info.Kind, a.Info.Kind) })
	for _, w := range want {
		h, ok := find(have, w.Name)
		if w.isMachine() || !ok {
			continue
		}
		set := func(differs bool, words ...string) {
			if differs {
				p.do(ctx, append([]string{"ip", "link", "set", w.Name}, words...)...)
			}
		}
		set(w.Master == "" && h.Master != "", "nomaster")
		if _, ok := words("", w.Master); ok {
			set(w.Master != "" && w.Master != h.Master, "master", w.Master)
		}
		if _, ok := words("", w.MAC); ok && w.Type == "ether" {
			set(w.MAC != h.MAC, "address", w.MAC)
		}
		set(w.Alias != h.Alias && w.Alias == "twill", "alias", "twill")
		set(w.MTU != h.MTU, "mtu", strconv.Itoa(w.MTU))
		set(w.up() && !h.up(), "up")
		set(!w.up() && h.up(), "down")
	}
}

// setPorts says of bridges' ports what they learn, flood and pass.
func (p *patient) setPorts(ctx context.Context, want, have []link) {
	for _, w := range want {
		h, ok := find(have, w.Name)
		if !ok || w.Info.SlaveKind != "bridge" || h.Info.SlaveKind != "bridge" {
			continue
		}
		var a, b struct {
			State     string `json:"state"`
			Learning  bool   `json:"learning"`
			Flood     bool   `json:"flood"`
			Multicast bool   `json:"mcast_flood"`
			Broadcast bool   `json:"bcast_flood"`
			Hairpin   bool   `json:"hairpin"`
			Isolated  bool   `json:"isolated"`
			Locked    bool   `json:"locked"`
		}
		if json.Unmarshal(w.Info.Slave, &a) != nil || json.Unmarshal(h.Info.Slave, &b) != nil || a == b {
			continue
		}
		command := []string{"bridge", "link", "set", "dev", w.Name, "learning", onOff(a.Learning), "flood", onOff(a.Flood),
			"mcast_flood", onOff(a.Multicast), "bcast_flood", onOff(a.Broadcast), "hairpin", onOff(a.Hairpin),
			"isolated", onOff(a.Isolated), "locked", onOff(a.Locked)}
		if state := slices.Index([]string{"disabled", "listening", "learning", "forwarding", "blocking"}, a.State); state >= 0 && w.up() {
			command = append(command, "state", strconv.Itoa(state))
		}
		p.do(ctx, command...)
	}
}
