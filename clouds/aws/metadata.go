package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// errNone is of something that the metadata does not have.
var errNone = errors.New("the metadata has no such entry")

// nic is a network interface of this instance, as the metadata describes it.
type nic struct {
	mac             string
	id, subnet, vpc string
	addrs           []netip.Addr
}

// read returns an entry of the metadata.
func (c *client) read(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := c.metadata.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	var answer *smithyhttp.ResponseError
	switch {
	case errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusNotFound:
		return "", fmt.Errorf("%s: %w", path, errNone)
	case err != nil:
		if ctx.Err() != nil { // the SDK keeps it to itself
			err = ctx.Err()
		}
		err = c.explain("the instance metadata service, "+path, err)
		return "", fmt.Errorf("%w; the node must be an instance of EC2 whose metadata may be read with IMDSv2", err)
	}
	defer func() { _ = out.Content.Close() }()
	text, err := io.ReadAll(out.Content)
	if err != nil {
		return "", c.explain("the instance metadata service, "+path, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// lines returns an entry that is a list. One that is not there is empty.
func (c *client) lines(ctx context.Context, path string) ([]string, error) {
	text, err := c.read(ctx, path)
	if errors.Is(err, errNone) {
		return nil, nil
	}
	return strings.Fields(text), err
}

// interfaces returns this instance's network interfaces.
func (c *client) interfaces(ctx context.Context) (all []nic, err error) {
	macs, err := c.lines(ctx, "network/interfaces/macs/")
	if err != nil {
		return nil, err
	}
	for _, m := range macs {
		n := nic{mac: strings.TrimSuffix(m, "/")}
		if _, err := net.ParseMAC(n.mac); err != nil {
			return nil, fmt.Errorf("the metadata lists %s among the network interfaces, and that is no MAC address",
				shorten(n.mac))
		}
		for _, list := range []string{"local-ipv4s", "ipv6s"} {
			texts, err := c.lines(ctx, n.path(list))
			if err != nil {
				return nil, err
			}
			for _, t := range texts {
				a, err := netip.ParseAddr(t)
				if err != nil {
					return nil, fmt.Errorf("the metadata says %s at %s, and that is no address", shorten(t), n.path(list))
				}
				n.addrs = append(n.addrs, a)
			}
		}
		all = append(all, n)
		own := &all[len(all)-1]
		for name, to := range map[string]*string{"interface-id": &own.id, "subnet-id": &own.subnet, "vpc-id": &own.vpc} {
			if *to, err = c.read(ctx, n.path(name)); err != nil {
				return nil, err
			}
			if !isName(*to) {
				return nil, fmt.Errorf("the metadata says %s at %s, and that is no ID", shorten(*to), n.path(name))
			}
		}
	}
	return all, nil
}

func (n nic) path(entry string) string { return "network/interfaces/macs/" + n.mac + "/" + entry }

// isName reports whether a text may be an ID or a region: letters, digits and dashes.
func isName(s string) bool {
	return s != "" && len(s) < 100 && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) < 0
}

// withAddrs returns the interface that has the addresses.
func withAddrs(all []nic, local []netip.Addr) (own nic, err error) {
	if len(local) == 0 {
		return nic{}, errors.New("the underlay has no address to find the network interface by")
	}
	for _, a := range local {
		i := slices.IndexFunc(all, func(n nic) bool { return slices.Contains(n.addrs, a.Unmap().WithZone("")) })
		switch {
		case i < 0:
			return nic{}, fmt.Errorf("no network interface of this instance has the address %s: the metadata has %s", a,
				describe(all))
		case own.id != "" && own.id != all[i].id:
			return nic{}, fmt.Errorf("%s is an address of %s, and %s of %s: one interface must have both", local[0], own.id, a,
				all[i].id)
		}
		own = all[i]
	}
	return own, nil
}

func describe(all []nic) string {
	var texts []string
	for _, n := range all {
		texts = append(texts, fmt.Sprintf("%s %v", n.id, n.addrs))
	}
	if len(texts) == 0 {
		return "no interface"
	}
	return strings.Join(texts, ", ")
}

// cidrs returns the blocks of the interface's VPC.
func (c *client) cidrs(ctx context.Context, n nic) (blocks []netip.Prefix, err error) {
	for _, list := range []string{"vpc-ipv4-cidr-blocks", "vpc-ipv6-cidr-blocks"} {
		texts, err := c.lines(ctx, n.path(list))
		if err != nil {
			return nil, err
		}
		for _, t := range texts {
			p, err := netip.ParsePrefix(t)
			if err != nil {
				return nil, fmt.Errorf("the metadata says %s at %s, and that is no CIDR", shorten(t), n.path(list))
			}
			blocks = append(blocks, p)
		}
	}
	return blocks, nil
}

// roleName is what Amazon lets roles be called.
var roleName = regexp.MustCompile(`^[A-Za-z0-9_+=,.@-]{1,64}$`)

// role returns the name of the instance's role, or a word for it.
func (c *client) role(ctx context.Context) string {
	names, err := c.lines(ctx, "iam/security-credentials/")
	if err != nil || len(names) != 1 || !roleName.MatchString(names[0]) {
		return "NODE-ROLE"
	}
	return names[0]
}
