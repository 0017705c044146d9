// Package choose finds what arguments name of a lab: devices to capture on, and the ends of packets.
package choose

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twill-net/twill/doctor/capture"
	"github.com/twill-net/twill/doctor/watch"
	"github.com/twill-net/twill/lab"
)

// Capture returns what arguments say is captured in a lab: on devices, and of packets between up to two ends.
func Capture(l *lab.Lab, devices, ends []string) (o capture.Options, err error) {
	if o.Filter, err = Ends(l, ends); err != nil {
		return o, err
	}
	o.About = "lab " + l.Name()
	if len(ends) > 0 {
		o.About += ", filter " + strings.Join(ends, ",")
	}
	o.Sources, err = Devices(l, devices)
	return o, err
}

// Devices returns the hosts and devices that arguments name, in the lab's order: hosts (node1, node1/pod1, underlay), of which
// all devices are captured, and single devices (node1/cni0). None means all of the lab.
func Devices(l *lab.Lab, args []string) (sources []capture.Source, err error) {
	places := l.Places()
	chosen := map[string]*capture.Source{}
	for _, p := range places {
		if len(args) == 0 && p.Host.Exists() {
			chosen[p.Name] = newSource(p)
		}
	}
	whole := map[string]bool{}
	for _, arg := range args {
		place, dev, err := locate(places, arg)
		if err != nil {
			return nil, err
		}
		if chosen[place.Name] == nil {
			chosen[place.Name] = newSource(place)
		}
		if dev == "" {
			whole[place.Name] = true
			continue
		}
		chosen[place.Name].Only = append(chosen[place.Name].Only, dev)
	}
	for _, p := range places {
		s := chosen[p.Name]
		if s == nil {
			continue
		}
		if whole[p.Name] {
			s.Only = nil
		}
		sources = append(sources, *s)
	}
	return sources, nil
}

func newSource(p lab.Place) *capture.Source { return &capture.Source{Place: placeOf(p)} }

func placeOf(p lab.Place) watch.Place { return watch.Place{Host: p.Name, Do: p.Host.Do} }

// locate returns the host that an argument names, and the device, empty for all.
func locate(places []lab.Place, arg string) (lab.Place, string, error) {
	var names []string
	for _, p := range places {
		if p.Name == arg {
			return p, "", nil
		}
		names = append(names, p.Name)
	}
	at := strings.LastIndex(arg, "/")
	i := slices.Index(names, arg[:max(at, 0)])
	if i < 0 {
		return lab.Place{}, "", fmt.Errorf("the lab has no host %q: want one of %s, or HOST/DEVICE", arg,
			strings.Join(names, ", "))
	}
	known, err := capture.Devices(placeOf(places[i]))
	if err != nil {
		return lab.Place{}, "", err
	}
	if !slices.Contains(known, arg[at+1:]) {
		return lab.Place{}, "", fmt.Errorf("%s has no device %q: want one of %s", places[i].Name, arg[at+1:],
			strings.Join(known, ", "))
	}
	return places[i], arg[at+1:], nil
}
