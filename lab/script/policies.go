package script

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (r *run) policies() map[string]func() verb {
	return map[string]func() verb{"policy": r.policy, "label": r.label, "connect": r.connect}
}

func (r *run) policy() verb {
	return verb{
		args:    "apply|delete FILE...",
		least:   2,
		summary: "give the agents manifests with NetworkPolicies and Namespaces, or take them away",
		detail:  []string{"The lab has to be up with -network-policy."},
		do: func(c *call) error {
			if r.lab == nil {
				return errNoLab
			}
			for _, name := range c.args[1:] {
				switch c.args[0] {
				case "apply":
					text, err := os.ReadFile(c.state.Path(name))
					if err == nil {
						err = r.lab.ApplyManifest(filepath.Base(name), text)
					}
					if err != nil {
						return err
					}
				case "delete":
					if err := r.lab.DeleteManifest(name); err != nil {
						return err
					}
				default:
					return fmt.Errorf("policy %q: want apply or delete", c.args[0])
				}
			}
			return nil
		},
	}
}

func (r *run) label() verb {
	namespace := ""
	return verb{
		args:    "[-namespace NAME] NODE/POD [KEY=VALUE...]",
		least:   1,
		summary: "make a pod one of a namespace, with labels beside node and pod, which all pods of a lab have",
		flags:   func(fs *flag.FlagSet) { fs.StringVar(&namespace, "namespace", "", "") },
		do: func(c *call) error {
			p, err := r.pod(c.args[0])
			if err != nil {
				return err
			}
			labels := map[string]string{}
			for _, text := range c.args[1:] {
				key, value, ok := strings.Cut(text, "=")
				if !ok {
					return fmt.Errorf("label %q: want KEY=VALUE", text)
				}
				labels[key] = value
			}
			return p.Label(namespace, labels)
		},
	}
}

// connectTimeout bounds a connection. A lost SYN is sent again after a second.
const connectTimeout = 1500 * time.Millisecond

func (r *run) connect() verb {
	var ipv6, udp bool
	way := serviceWay{times: 1}
	return verb{
		args:    "[-6] [-udp] FROM TO PORT, or [-times N] [-by POD] [-seen ADDRESS] FROM service/NAME [NODE]",
		least:   2,
		summary: "send a word to a port of a host, where a server answers with it, or to a Service",
		detail: []string{
			"Of a Service all endpoints have servers; it prints which answer, and whom they see. With NODE the client",
			"uses the Service's port of that node, else its cluster IP; of a headless one it uses the endpoints.",
			"-by POD: no other one may answer; -seen ADDRESS: they have to see the client with this address.",
		},
		flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&ipv6, "6", false, "")
			fs.BoolVar(&udp, "udp", false, "")
			fs.IntVar(&way.times, "times", 1, "")
			fs.StringVar(&way.seen, "seen", "", "")
			fs.StringVar(&way.by, "by", "", "")
		},
		do: func(c *call) error {
			switch {
			case strings.HasPrefix(c.args[1], servicePrefix):
				return r.connectService(c, way)
			case len(c.args) < 3:
				return fmt.Errorf("connect %s: want a PORT, or service/NAME", c.args[1])
			}
			port, err := strconv.ParseUint(c.args[2], 10, 16)
			if err != nil {
				return fmt.Errorf("port %q: want a number up to 65535", c.args[2])
			}
			from, addr, err := r.ends(c, ipv6)
			if err != nil {
				return err
			}
			to, err := r.find(c.args[1])
			if err != nil {
				return err
			}
			network := "tcp"
			if udp {
				network = "udp"
			}
			ctx, cancel := context.WithTimeout(c.ctx, connectTimeout)
			defer cancel()
			return inTime(from.Exchange(ctx, to, network, netip.AddrPortFrom(addr, uint16(port))))
		},
	}
}

// inTime says of a connection that took too long that there was no answer. A connection ends at its deadline, which is just
// before its context's.
func inTime(err error) error {
	var late net.Error
	if errors.As(err, &late) && late.Timeout() || errors.Is(err, net.ErrClosed) {
		return errors.New("there was no answer within " + connectTimeout.String())
	}
	return err
}
