package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/netstate/kernel"
	"github.com/twill-net/twill/subnet"
)

// dockerOpts are the options of flannel's mk-docker-opts.sh.
type dockerOpts struct {
	flannelEnv, dockerEnv, key     string
	individual, combined, noIPMasq bool
}

func dockerOptsCommand() *cobra.Command {
	var o dockerOpts
	c := &cobra.Command{
		Use:   "docker-opts",
		Short: "Write the lease as options of the Docker daemon, as flannel's mk-docker-opts.sh",
		Long: `Reads subnet.env and writes an environment file with options of dockerd: --bip, --mtu and --ip-masq. Options and output
are those of flannel's mk-docker-opts.sh. Unlike the script, it fails if there is no lease yet.

Variables DOCKER_OPT_… of the environment are among the options, and the combined options begin with what the
environment has under the combined key.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(os.Environ()) },
	}
	flags := c.Flags()
	flags.StringVarP(&o.flannelEnv, "flannel-env", "f", "/run/flannel/subnet.env", "the file with this node's lease")
	flags.StringVarP(&o.dockerEnv, "docker-env", "d", "/run/docker_opts.env", "the environment file to write")
	flags.BoolVarP(&o.individual, "individual", "i", false, "only a variable for each option, such as DOCKER_OPT_MTU")
	flags.BoolVarP(&o.combined, "combined", "c", false, "only all options in one variable")
	flags.BoolVarP(&o.noIPMasq, "no-ip-masq", "m", false, "without --ip-masq, for old versions of Docker")
	flags.StringVarP(&o.key, "key", "k", "DOCKER_OPTS", "the name of the variable with all options")
	return c
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (o dockerOpts) run(environ []string) error {
	if !variableName.MatchString(o.key) {
		return fmt.Errorf("--key %q: want the name of a variable, such as DOCKER_OPTS", o.key)
	}
	env, err := subnet.ReadEnv(o.flannelEnv)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: start twilld first", err)
	case err != nil:
		return err
	}
	if err := os.WriteFile(o.dockerEnv, o.format(env, environ), 0o644); err != nil {
		return fmt.Errorf("write the options of Docker: %w", err)
	}
	if s, ok := env.Subnet(netstate.IPv4); ok {
		return checkRoutes(s)
	}
	return nil
}

// format returns the environment file. The individual options are in the order of their names.
func (o dockerOpts) format(env subnet.Env, environ []string) []byte {
	options := map[string]string{}
	combined := ""
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "DOCKER_OPT_") {
			options[name] = value
		}
		if name == o.key && value != "" {
			combined = value + " "
		}
	}
	for _, s := range env.Subnets {
		if s.Addr().Is4() {
			options["DOCKER_OPT_BIP"] = "--bip=" + s.String()
		}
	}
	options["DOCKER_OPT_MTU"] = fmt.Sprintf("--mtu=%d", env.MTU)
	if !o.noIPMasq {
		options["DOCKER_OPT_IPMASQ"] = fmt.Sprintf("--ip-masq=%t", !env.IPMasq)
	}
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if o.individual || !o.combined {
			fmt.Fprintf(&b, "%s=\"%s\"\n", name, options[name])
		}
		combined += " " + options[name]
	}
	if o.combined || !o.individual {
		fmt.Fprintf(&b, "%s=\"%s\"\n", o.key, combined)
	}
	return b.Bytes()
}

// checkRoutes returns an error if this machine reaches its own subnet through another one.
func checkRoutes(own netip.Prefix) error {
	k, err := kernel.New(nil)
	if err != nil {
		return err
	}
	defer k.Close()
	routes, err := k.Routes()
	if err != nil {
		return err
	}
	for _, r := range routes {
		if r.Dst == own && r.Via.IsValid() {
			return fmt.Errorf("your routing table already contains the subnet: %s via %s: delete that route", own, r.Via)
		}
	}
	return nil
}
