package announce

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/policy/announce/message"
)

var (
	validUID = regexp.MustCompile(`^[A-Za-z0-9-]{0,128}$`)
	// staticUID is a UID that the kubelet made for a pod of a file. The API server gives another one to its mirror.
	staticUID = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

// read reads a message.
func read(r io.Reader) (p message.Pod, err error) {
	line, err := bufio.NewReader(io.LimitReader(r, message.MaxSize)).ReadBytes('\n')
	switch {
	case errors.Is(err, io.EOF) && len(line) == message.MaxSize:
		return p, fmt.Errorf("the message is too long: want a line of JSON of at most %d bytes", message.MaxSize)
	case errors.Is(err, io.EOF):
		return p, fmt.Errorf("the message ends after %d bytes: want a line of JSON", len(line))
	case err != nil:
		return p, fmt.Errorf("read the message: %w", err)
	}
	return decode(line)
}

// decode decodes and checks a message.
func decode(line []byte) (p message.Pod, err error) {
	if err := json.Unmarshal(line, &p); err != nil {
		return message.Pod{}, fmt.Errorf("the message is %.80q: want an object with version, namespace, name, uid and addresses: %w",
			bytes.TrimSpace(line), err)
	}
	return p, check(&p)
}

// check returns an error if a message cannot be about a pod. It leaves out a UID that the API server does not know.
func check(p *message.Pod) error {
	if p.Version != message.Version {
		return fmt.Errorf("the message has version %d: want %d, as from a CNI plugin of this release", p.Version, message.Version)
	}
	if problems := validation.IsDNS1123Label(p.Namespace); len(problems) > 0 {
		return fmt.Errorf("namespace %.80q: %s", p.Namespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(p.Name); len(problems) > 0 {
		return fmt.Errorf("pod name %.80q: %s", p.Name, problems[0])
	}
	if !validUID.MatchString(p.UID) {
		return fmt.Errorf("UID %.80q: want up to 128 letters, digits and -", p.UID)
	}
	if staticUID.MatchString(p.UID) {
		p.UID = ""
	}
	if len(p.Addresses) == 0 {
		return errors.New("the message has no addresses: want one or two")
	}
	seen := map[netstate.Family]bool{}
	for _, a := range p.Addresses {
		family := netstate.FamilyOf(a)
		if !a.IsGlobalUnicast() || a.Zone() != "" || a.Is4In6() || seen[family] {
			return fmt.Errorf("addresses %v: want at most one of each family, and unicast", p.Addresses)
		}
		seen[family] = true
	}
	return nil
}

// within returns an error if an address is in none of the subnets.
func within(subnets []netip.Prefix, addrs []netip.Addr) error {
	for _, a := range addrs {
		if !slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return fmt.Errorf("address %s is not one of this node's: want one of %v", a, subnets)
		}
	}
	return nil
}
