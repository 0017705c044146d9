// Package gce keeps routes in a network of Google Compute Engine. It speaks the few methods of the compute API that this
// needs itself: Google's client of the whole API is larger than the rest of the agent's network code.
//
// A network has one routing table. Its routes have names, cannot be altered, and there may be several to one destination:
// then packets are spread over all of them. So before a route is made there must be none, and a route is deleted by its name
// only after that was read and is the one meant.
package gce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
)

const (
	// api is where the compute API is, if CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE does not say otherwise, as of gcloud.
	api         = "https://compute.googleapis.com/compute/v1/"
	apiOverride = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"

	requestTimeout = 10 * time.Second
	// operationTimeout is how long a change may take: making a route was seen to take most of a minute.
	operationTimeout = 100 * time.Second
)

type client struct {
	options  cloud.Options
	api      string
	http     *http.Client
	metadata metadata
	tokens   *tokens
	keyFile  string // of a service account; empty: the machine's
}

// New returns the API of Google Compute Engine. It implements cloud.Opener.
func New(o cloud.Options) (cloud.Cloud, error) {
	if len(o.Tables) > 0 {
		return nil, fmt.Errorf("a network of Google Compute Engine has one routing table: do not name %v", o.Tables)
	}
	if o.KeyID != "" || o.KeySecret.Reveal() != "" {
		return nil, errors.New("there are no access keys of Google Compute Engine: give the machine a service account, " +
			"or name a service account's key file in " + keyFileVariable)
	}
	c := &client{options: o, api: api, metadata: openMetadata()}
	if there := os.Getenv(apiOverride); there != "" {
		c.api = strings.TrimSuffix(there, "/") + "/"
	}
	c.http = &http.Client{CheckRedirect: noRedirect}
	c.tokens = &tokens{fetch: c.metadata.token}
	if c.keyFile = os.Getenv(keyFileVariable); c.keyFile != "" {
		c.tokens.fetch = keyFile{c.keyFile, c.http}.token
	}
	return c, nil
}

// noRedirect keeps a token from being sent to where a server points.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// List implements cloud.Cloud.
func (c *client) List(ctx context.Context, self cloud.Self) ([]cloud.Route, error) {
	n, err := parseNetwork(self.Network)
	if err != nil {
		return nil, err
	}
	all, err := c.list(ctx, n, filter("network", ".*/networks/"+n.name))
	if err != nil {
		return nil, err
	}
	var routes []cloud.Route
	for _, w := range all {
		r, err := w.route(self)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// Apply implements cloud.Cloud.
func (c *client) Apply(ctx context.Context, self cloud.Self, change cloud.Change) error {
	n, err := parseNetwork(self.Network)
	if err != nil {
		return err
	}
	switch change.Op {
	case cloud.Create:
		return c.create(ctx, n, change.Route)
	case cloud.Replace:
		if err := c.remove(ctx, n, self, change.Old); errors.Is(err, errOther) {
			return fmt.Errorf("%w: %w", cloud.ErrExists, err)
		} else if err != nil && !errors.Is(err, cloud.ErrGone) {
			return err
		}
		return c.insert(ctx, n, change.Route)
	}
	if err := c.remove(ctx, n, self, change.Route); errors.Is(err, errOther) {
		return fmt.Errorf("%w: %w", cloud.ErrGone, err)
	} else if err != nil {
		return err
	}
	return nil
}

// create makes a route if there is none to its destination.
func (c *client) create(ctx context.Context, n network, r cloud.Route) error {
	there, err := c.at(ctx, n, cloud.Self{}, r.Dst)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("network %s has %s by the name %s: %w", n.name, there[0], oneLine(there[0].Name), cloud.ErrExists)
	}
	return c.insert(ctx, n, r)
}

// at returns the routes to a prefix.
func (c *client) at(ctx context.Context, n network, self cloud.Self, dst netip.Prefix) (routes []cloud.Route, err error) {
	all, err := c.list(ctx, n, filter("destRange", quote(dst.String())))
	if err != nil {
		return nil, err
	}
	for _, w := range all {
		r, err := w.route(self)
		if err != nil {
			return nil, err
		}
		if r.Dst == dst { // a server need not know filters
			routes = append(routes, r)
		}
	}
	return routes, nil
}

func (c *client) insert(ctx context.Context, n network, r cloud.Route) error {
	w := route{
		Name: routeName(n, r.Dst, c.options.Pools), Description: mark, Network: resources + n.path(),
		DestRange: r.Dst.String(), Priority: &priority,
	}
	if err := w.lead(r.Target, r.Dst); err != nil {
		return err
	}
	var op operation
	if err := c.call(ctx, request{method: "routes.insert", verb: http.MethodPost, path: n.routes(), in: w}, &op); err != nil {
		return err
	}
	return c.wait(ctx, n, "routes.insert", op)
}

// errOther: a route's name is another route's by now.
var errOther = errors.New("that route is another one now")

// remove deletes a route that was listed, if it is still that.
func (c *client) remove(ctx context.Context, n network, self cloud.Self, r cloud.Route) error {
	name := r.Name
	if name == "" {
		there, err := c.at(ctx, n, self, r.Dst)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(there, func(o cloud.Route) bool { return o.Target == r.Target })
		if i < 0 {
			return fmt.Errorf("network %s has none to %s by %s: %w", n.name, r.Dst, r.Target, cloud.ErrGone)
		}
		name = there[i].Name
	}
	if !isName(name) {
		return fmt.Errorf("%q is not the name of a route", oneLine(name))
	}
	var now route
	path := n.routes() + "/" + name
	if err := c.call(ctx, request{method: "routes.get", verb: http.MethodGet, path: path}, &now); err != nil {
		return err
	}
	is, err := now.route(self)
	if err != nil {
		return err
	}
	if is.Dst != r.Dst || is.Target != r.Target || !n.has(now.Network) {
		return fmt.Errorf("%s is %s in %s: it is left alone: %w", name, is, resource(now.Network), errOther)
	}
	var op operation
	if err := c.call(ctx, request{method: "routes.delete", verb: http.MethodDelete, path: path}, &op); err != nil {
		return err
	}
	return c.wait(ctx, n, "routes.delete", op)
}
