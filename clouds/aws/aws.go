// Package aws keeps routes in the routing tables of an Amazon VPC. A route's target is the network interface of the
// node.
//
// Who the node is comes from the instance metadata service; the tables are EC2's. Credentials and endpoints are found
// as Amazon's own tools find them, and AWS_SECURITY_TOKEN is understood as flannel does.
package aws

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go/logging"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/subnet"
)

// timeout is how long a request may take.
const timeout = 10 * time.Second

type client struct {
	metadata *imds.Client
	ec2      *ec2.Client
	secrets  *secrets
	tables   []string
	pools    []subnet.Pool

	mu      sync.Mutex
	region  string          // asked of the metadata if the environment does not say it
	allowed map[string]bool // interfaces of nodes that may do all that is needed
}

// New returns the API of EC2. It is a cloud.Opener.
func New(o cloud.Options) (cloud.Cloud, error) {
	var tables []string
	for _, t := range o.Tables {
		if !slices.Contains(tables, t) {
			tables = append(tables, t)
		}
		if !strings.HasPrefix(t, "rtb-") {
			return nil, fmt.Errorf("RouteTableID %q: the ID of a routing table begins with rtb-", t)
		}
	}
	keys := &secrets{}
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(awshttp.NewBuildableClient().WithTimeout(timeout)),
		config.WithRetryer(func() awssdk.Retryer { return awssdk.NopRetryer{} }),
		config.WithLogger(logging.Nop{}),
	}
	if p := given(o); p != nil {
		load = append(load, config.WithCredentialsProvider(p))
	}
	c, err := config.LoadDefaultConfig(context.Background(), load...)
	if err != nil {
		return nil, fmt.Errorf("read the settings of Amazon's tools: %w", err)
	}
	keys.CredentialsProvider = c.Credentials
	c.Credentials = keys
	transport := http.RoundTripper(http.DefaultTransport)
	if b, ok := c.HTTPClient.(*awshttp.BuildableClient); ok { // it has the certificates of AWS_CA_BUNDLE
		transport = b.GetTransport()
	}
	a := &client{secrets: keys, tables: tables, pools: o.Pools, region: c.Region, allowed: map[string]bool{}}
	c.HTTPClient = wire(transport, "")
	a.metadata = imds.NewFromConfig(c, func(o *imds.Options) { o.EnableFallback = awssdk.FalseTernary })
	c.HTTPClient = wire(transport, "xml")
	a.ec2 = ec2.NewFromConfig(c)
	return a, nil
}

// given returns the credentials that the SDK would not find, nil if there are none.
func given(o cloud.Options) awssdk.CredentialsProvider {
	if o.KeyID != "" {
		return credentials.NewStaticCredentialsProvider(o.KeyID, o.KeySecret.Reveal(), "")
	}
	id := cmp.Or(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_ACCESS_KEY"))
	secret := cmp.Or(os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SECRET_KEY"))
	token := os.Getenv("AWS_SECURITY_TOKEN")
	if id == "" || secret == "" || token == "" || os.Getenv("AWS_SESSION_TOKEN") != "" {
		return nil
	}
	return credentials.NewStaticCredentialsProvider(id, secret, token)
}

// Self implements cloud.Cloud.
func (c *client) Self(ctx context.Context, local []netip.Addr) (cloud.Self, error) {
	all, err := c.interfaces(ctx)
	if err != nil {
		return cloud.Self{}, err
	}
	own, err := withAddrs(all, local)
	if err != nil {
		return cloud.Self{}, err
	}
	self := cloud.Self{Target: own.id, Network: own.vpc, Tables: slices.Clone(c.tables)}
	if len(self.Tables) == 0 {
		table, err := c.tableOf(ctx, own)
		if err != nil {
			return cloud.Self{}, err
		}
		self.Tables = []string{table}
	}
	return self, nil
}

// in returns the option that sends a request to the node's region, which is asked for once.
func (c *client) in(ctx context.Context) (func(*ec2.Options), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.region == "" {
		region, err := c.read(ctx, "placement/region")
		if err != nil {
			return nil, fmt.Errorf("find the region: %w", err)
		}
		if !isName(region) {
			return nil, fmt.Errorf("the metadata says that the region is %s", shorten(region))
		}
		c.region = region
	}
	region := c.region
	return func(o *ec2.Options) { o.Region = region }, nil
}
