// Package ali keeps the routes of Alibaba Cloud's VPCs. A route's next hop is an ECS instance, as flannel made it, so
// that flannel's routes are adopted.
//
// Of Alibaba's SDK only the signing of requests is used: its client knows no context, retries, follows redirects, and
// puts signatures into errors.
package ali

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twill-net/twill/cloud"
)

// timeout is that of one request.
const timeout = 10 * time.Second

// metadataURL is where the metadata service of an instance is.
const metadataURL = "http://100.100.100.200"

// api implements cloud.Cloud.
type api struct {
	cloud.Options
	http *http.Client
	meta metadata
	key  accessKey // what the options or the environment have; empty: the instance's role

	mu     sync.Mutex
	region string
	role   roleKey
	nic    nic // of the latest Self
}

// New implements cloud.Opener.
func New(o cloud.Options) (cloud.Cloud, error) { return NewAt(o, metadataURL) }

// NewAt is New with a metadata service that is elsewhere.
func NewAt(o cloud.Options, metadataURL string) (cloud.Cloud, error) {
	for _, p := range o.Pools {
		if p.Network.Addr().Is6() {
			return nil, fmt.Errorf("the network %s: %w", p.Network, errSix)
		}
	}
	key, err := configuredKey(o)
	if err != nil {
		return nil, err
	}
	return &api{Options: o, key: key, http: newHTTP(timeout, true), meta: newMetadata(metadataURL)}, nil
}

// newHTTP returns a client that follows no redirects: they would carry a signature to somebody else.
func newHTTP(timeout time.Duration, proxy bool) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if !proxy {
		transport.Proxy = nil
	}
	return &http.Client{Timeout: timeout, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Self implements cloud.Cloud.
func (a *api) Self(ctx context.Context, local []netip.Addr) (cloud.Self, error) {
	session, err := a.meta.open(ctx)
	if err != nil {
		return cloud.Self{}, err
	}
	instance, err := session.get(ctx, "instance-id")
	if err != nil {
		return cloud.Self{}, err
	}
	found, err := session.nicWith(ctx, local)
	if err != nil {
		return cloud.Self{}, fmt.Errorf("%s: %w", instance, err)
	}
	a.mu.Lock()
	a.nic = found
	a.mu.Unlock()
	self := cloud.Self{Target: instance, Network: found.vpc, Tables: slices.Clone(a.Tables)}
	if len(self.Tables) > 0 {
		return self, nil
	}
	table, err := a.tableOf(ctx, found)
	if err != nil {
		return cloud.Self{}, fmt.Errorf("find the routing table of vSwitch %s: %w", found.vswitch, err)
	}
	self.Tables = []string{table}
	return self, nil
}

// tableOf returns the routing table of a network interface's vSwitch.
func (a *api) tableOf(ctx context.Context, n nic) (string, error) {
	var vswitch struct {
		RouteTable struct{ RouteTableId string }
	}
	err := a.call(ctx, vpc, "DescribeVSwitchAttributes", params{"VSwitchId": n.vswitch}, &vswitch)
	if err != nil || vswitch.RouteTable.RouteTableId != "" {
		return vswitch.RouteTable.RouteTableId, err
	}
	tables, err := a.tables(ctx, n.vpc)
	if err != nil {
		return "", err
	}
	for _, t := range tables {
		if t.RouteTableType == "System" {
			return t.RouteTableId, nil
		}
	}
	return "", fmt.Errorf("neither it nor %s has one", n.vpc)
}

// where returns the region that the node is in.
func (a *api) where(ctx context.Context) (string, error) {
	a.mu.Lock()
	region := a.region
	a.mu.Unlock()
	if region != "" {
		return region, nil
	}
	session, err := a.meta.open(ctx)
	if err != nil {
		return "", err
	}
	region, err = session.get(ctx, "region-id")
	if err != nil {
		return "", err
	}
	if strings.Trim(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || region == "" {
		return "", fmt.Errorf("the metadata service's region-id is %.40q, which is no region", region)
	}
	a.mu.Lock()
	a.region = region
	a.mu.Unlock()
	return region, nil
}
