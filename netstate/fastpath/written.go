package fastpath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// written is what the maps should have: what was in them at the last Observe, whose caller brings them to what is wanted,
// and what was written since. The kernel announces no change of a map.
type written struct {
	known     bool // the maps were read
	shortcuts map[shortcutKey]shortcut
	pods      map[[16]byte]pod
	settings  parameters
}

// learn reads what is in the maps now.
func (p *Provider) learn() error {
	if why, err := p.altered(); p.written.known && why == "" {
		return err
	}
	w := written{known: true, shortcuts: map[shortcutKey]shortcut{}, pods: map[[16]byte]pod{}}
	err := entries(p.maps[shortcutsMap], func(k shortcutKey, e shortcut) { w.shortcuts[k] = e })
	if err == nil {
		err = entries(p.maps[podsMap], func(k [16]byte, e pod) { w.pods[k] = e })
	}
	if err == nil {
		err = p.maps[settingsMap].Lookup(uint32(0), &w.settings)
	}
	if err == nil {
		p.written = w
	}
	return err
}

// altered returns what somebody else wrote into the maps, empty if nobody did. An altered entry sends packets to where
// nobody has them, so that nothing may take the fast path until all of it is made anew.
func (p *Provider) altered() (string, error) {
	if !p.written.known {
		return "", nil
	}
	var all []string
	peers, err := differences(p.maps[shortcutsMap], p.written.shortcuts)
	for _, k := range peers {
		all = append(all, k.prefix().String())
	}
	if err == nil {
		var pods [][16]byte
		pods, err = differences(p.maps[podsMap], p.written.pods)
		for _, k := range pods {
			all = append(all, decodeAddr(k).String())
		}
	}
	var settings parameters
	if err == nil {
		err = p.maps[settingsMap].Lookup(uint32(0), &settings)
	}
	if err == nil && settings != p.written.settings {
		all = append(all, "the settings")
	}
	if err != nil {
		return "", fmt.Errorf("read the fast path's maps: %w", err)
	}
	if len(all) == 0 {
		return "", nil
	}
	slices.Sort(all)
	return fmt.Sprintf("somebody altered its maps (%d entries, the first is that of %s): all of it is made anew", len(all), all[0]), nil
}

// differences returns the keys of entries of a map that are not as they should be, not there or too many.
func differences[K, V comparable](m *ebpf.Map, want map[K]V) (others []K, err error) {
	same := 0
	err = entries(m, func(k K, v V) {
		if w, ok := want[k]; ok && w == v {
			same++
		} else {
			others = append(others, k)
		}
	})
	if err != nil || same == len(want) {
		return others, err
	}
	there := map[K]bool{}
	err = entries(m, func(k K, _ V) { there[k] = true })
	for k := range want {
		if !there[k] {
			others = append(others, k)
		}
	}
	return others, err
}
