package gce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/subnet"
)

// The permissions that keeping a route takes. Those of a network's own project and those of the machine's may be two roles.
var (
	routePermissions = []string{"compute.routes.list", "compute.routes.get", "compute.routes.create", "compute.routes.delete",
		"compute.networks.updatePolicy", "compute.globalOperations.get"}
	instancePermissions = []string{"compute.instances.get", "compute.instances.use"}
)

// Check implements cloud.Cloud. It only reports: whether a machine forwards is not the machine's to say here.
func (c *client) Check(ctx context.Context, self cloud.Self) ([]cloud.Trouble, error) {
	n, err := parseNetwork(self.Network)
	if err != nil {
		return nil, err
	}
	m, err := c.machine(ctx)
	if err != nil {
		return nil, err
	}
	var all []cloud.Trouble
	for _, check := range []func(context.Context, network, machine, cloud.Self) ([]cloud.Trouble, error){
		c.checkScope, c.checkForwarding, c.checkPermissions, c.checkRoutes,
	} {
		found, err := check(ctx, n, m, self)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// checkScope: whatever its role permits, a machine's service account can do only what the machine's scopes include.
func (c *client) checkScope(ctx context.Context, _ network, m machine, _ cloud.Self) ([]cloud.Trouble, error) {
	if c.keyFile != "" {
		return nil, nil
	}
	text, err := c.metadata.get(ctx, "instance/service-accounts/default/scopes")
	if err != nil {
		return nil, err
	}
	for _, s := range strings.Fields(text) {
		if s == scope || s == "https://www.googleapis.com/auth/cloud-platform" {
			return nil, nil
		}
	}
	const actual = "the machine's access scopes do not include compute"
	return []cloud.Trouble{{ID: cloud.Denied, Object: m.path(), Actual: actual, Fix: fmt.Sprintf(
		"gcloud compute instances stop %[1]s && gcloud compute instances set-service-account %[1]s --scopes=cloud-platform && "+
			"gcloud compute instances start %[1]s", m.flags())}}, nil
}

// checkForwarding asks whether the machine may have packets that are not for itself.
func (c *client) checkForwarding(ctx context.Context, _ network, m machine, _ cloud.Self) ([]cloud.Trouble, error) {
	var instance struct {
		CanIPForward bool `json:"canIpForward"`
	}
	err := c.call(ctx, request{method: "instances.get", verb: http.MethodGet, path: m.path()}, &instance)
	switch {
	case errors.Is(err, cloud.ErrDenied):
		return []cloud.Trouble{c.denied(ctx, m.project, m.path(), []string{"compute.instances.get"})}, nil
	case err != nil || instance.CanIPForward:
		return nil, err
	}
	return []cloud.Trouble{{ID: cloud.ForwardingOff, Object: m.path(), Actual: "canIpForward is false", Fix: fmt.Sprintf(
		"gcloud compute instances export %[1]s | sed 's/^canIpForward: false/canIpForward: true/' | "+
			"gcloud compute instances update-from-file %[1]s", m.flags())}}, nil
}

// checkPermissions asks for those of the machine. Those of routes are asked for when one is found, or show when it is made.
func (c *client) checkPermissions(ctx context.Context, _ network, m machine, self cloud.Self) ([]cloud.Trouble, error) {
	if self.Target != m.path() { // a route in a Shared VPC does not name the machine
		return nil, nil
	}
	missing, err := c.missing(ctx, "instances", m.path(), []string{"compute.instances.use"})
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	return []cloud.Trouble{c.denied(ctx, m.project, m.path(), missing)}, nil
}

// missing returns which permissions of a resource the caller lacks.
func (c *client) missing(ctx context.Context, kind, path string, wanted []string) (missing []string, err error) {
	type permissions struct {
		Permissions []string `json:"permissions"`
	}
	var has permissions
	r := request{method: kind + ".testIamPermissions", verb: http.MethodPost, path: path + "/testIamPermissions",
		in: permissions{wanted}}
	if err := c.call(ctx, r, &has); errors.Is(err, cloud.ErrDenied) {
		return wanted, nil
	} else if err != nil {
		return nil, err
	}
	for _, p := range wanted {
		if !slices.Contains(has.Permissions, p) {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// checkRoutes looks for what routes tell of the network: its own ranges, and what they lack.
func (c *client) checkRoutes(ctx context.Context, n network, m machine, self cloud.Self) (all []cloud.Trouble, err error) {
	routes, err := c.list(ctx, n, filter("network", ".*/networks/"+n.name))
	switch {
	case errors.Is(err, cloud.ErrDenied):
		return []cloud.Trouble{c.denied(ctx, n.project, n.path(), []string{"compute.routes.list"})}, nil
	case err != nil:
		return nil, err
	}
	tested := false
	for _, r := range routes {
		is, err := r.route(self)
		switch {
		case err != nil:
			return all, err
		case r.NextHopNetwork != "" || r.NextHopPeering != "":
			all = append(all, overlap(n, is, c.options.Pools)...)
		case is.Target == self.Target:
			if slices.ContainsFunc(r.Warnings, func(w warning) bool { return w.Code == "NEXT_HOP_INSTANCE_HAS_NO_IPV6_INTERFACE" }) {
				all = append(all, noIPv6(m, is))
			}
			if tested {
				continue
			}
			tested = true
			missing, err := c.missing(ctx, "routes", n.routes()+"/"+is.Name, []string{"compute.routes.get", "compute.routes.delete"})
			if err != nil {
				return all, err
			}
			if len(missing) > 0 {
				all = append(all, c.denied(ctx, n.project, n.path(), missing))
			}
		}
	}
	return all, nil
}

// noIPv6 returns the trouble of a route of IPv6 that leads to a machine without.
func noIPv6(m machine, r cloud.Route) cloud.Trouble {
	return cloud.Trouble{ID: cloud.ForwardingOff, Object: r.Name, Actual: "the machine's interface has no IPv6 address",
		Fix: "gcloud compute instances network-interfaces update " + m.flags() + " --stack-type=IPV4_IPV6"}
}

// overlap returns the pools that a range of the network overlaps: a route to a part of it is refused.
func overlap(n network, r cloud.Route, pools []subnet.Pool) (all []cloud.Trouble) {
	for _, p := range pools {
		if p.Network != (netip.Prefix{}) && r.Dst.Bits() > 0 && p.Network.Overlaps(r.Dst) {
			all = append(all, cloud.Trouble{ID: cloud.Overlap, Object: p.Network.String(),
				Actual: fmt.Sprintf("%s is a subnet's range in %s, by the route %s: choose a Network that overlaps none",
					r.Dst, n.path(), r.Name),
				Fix: fmt.Sprintf("gcloud compute networks subnets list --network=%s --project=%s", n.name, n.project)})
		}
	}
	return all
}

// denied returns the trouble of missing permissions.
func (c *client) denied(ctx context.Context, project, object string, missing []string) cloud.Trouble {
	actual := "no permission " + strings.Join(missing, ", ")
	return cloud.Trouble{ID: cloud.Denied, Object: object, Actual: actual, Fix: fmt.Sprintf(
		"gcloud iam roles create twill --project=%[1]s --permissions=%[2]s && "+
			"gcloud projects add-iam-policy-binding %[1]s --member=serviceAccount:%[3]s --role=projects/%[1]s/roles/twill",
		project, strings.Join(append(slices.Clone(routePermissions), instancePermissions...), ","), c.account(ctx))}
}

// account returns the service account that requests are made as.
func (c *client) account(ctx context.Context) string {
	var email string
	if c.keyFile == "" {
		email, _ = c.metadata.get(ctx, "instance/service-accounts/default/email")
	} else if k, err := (keyFile{path: c.keyFile}).read(); err == nil {
		email = k.ClientEmail
	}
	if !emailForm.MatchString(email) {
		return "ACCOUNT"
	}
	return email
}
