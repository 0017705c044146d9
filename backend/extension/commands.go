package extension

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/twill-net/twill/netstate"
	"github.com/twill-net/twill/subnet"
)

// patience is how long one command may take.
const patience = 30 * time.Second

// maxShown bounds how much of a command's output an error tells, in bytes.
const maxShown = 500

// place is what a command learns of a node, flannel's variables by name; a family that the node does not have is
// an empty value.
type place struct {
	Subnet, IPv6Subnet   string
	PublicIP, PublicIPv6 string
	Data                 string // the standard input: what the node's PreStartupCommand wrote
}

// placeOf is a lease's place.
func placeOf(stacks []subnet.Stack) place {
	var p place
	for _, s := range stacks {
		if s.Family() == netstate.IPv4 {
			p.Subnet, p.PublicIP = s.Subnet.String(), s.Underlay.String()
		} else {
			p.IPv6Subnet, p.PublicIPv6 = s.Subnet.String(), s.Underlay.String()
		}
		if p.Data == "" {
			_ = json.Unmarshal(s.Data, &p.Data) // what is not a string is not from this backend's peers
		}
	}
	return p
}

func (p place) environment() []string {
	return []string{
		"SUBNET=" + p.Subnet,
		"IPV6SUBNET=" + p.IPv6Subnet,
		"PUBLIC_IP=" + p.PublicIP,
		"PUBLIC_IPV6=" + p.PublicIPv6,
	}
}

// network is the variables that say the cluster's networks.
func network(networks []netip.Prefix) []string {
	env := []string{"NETWORK=", "IPV6NETWORK="}
	for _, n := range networks {
		if n.Addr().Is4() {
			env[0] = "NETWORK=" + n.String()
		} else {
			env[1] = "IPV6NETWORK=" + n.String()
		}
	}
	return env
}

// argv is the program and the arguments of a command. As flannel does since v0.28.2, it is split at white
// space, then variables are put in: what they hold is never split or read as anything but text. A shell
// reads all of it only if the config asks for one.
func (o Options) argv(command string, env []string) []string {
	if o.Shell {
		return []string{"sh", "-c", command}
	}
	values := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	words := strings.Fields(command)
	for i, w := range words {
		words[i] = os.Expand(w, func(name string) string { return values[name] })
	}
	return words
}

// run runs a command and returns what it wrote, without white space around it. When it takes longer than limit, it and
// everything it started in its process group is ended.
func (o Options) run(ctx context.Context, limit time.Duration, command, input string, env ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	env = append(os.Environ(), env...)
	argv := o.argv(command, env)
	if len(argv) == 0 {
		return "", nil
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin = strings.NewReader(input + "\n") // flannel's ends in a line break
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a grandchild in another process group that holds the output open
	err := cmd.Run()
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("it took longer than %s", limit)
	}
	if err != nil {
		return "", fmt.Errorf("run %q: %w%s", command, err, shown(out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// shown is output for an error's end.
func shown(output string) string {
	output = strings.TrimSpace(output)
	if output == "" {
		return ""
	}
	return ": " + output[:min(len(output), maxShown)]
}
