package aws

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/aws"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

const region = "eu-central-1"

var pools = []subnet.Pool{{Network: netip.MustParsePrefix("10.244.0.0/14"), SubnetLen: 24}}

// clean leaves nothing of the tester's own credentials and settings.
func clean(t *testing.T) {
	t.Helper()
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN", "AWS_ENDPOINT_URL_EC2", "AWS_CA_BUNDLE"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	for _, name := range []string{"AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"} { // the CLI does not take them empty
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}

// program returns the path of a program that works, and skips the test if there is none.
func program(t *testing.T, name string, try ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("this machine has no %s, which judges this: %v", name, err)
	}
	if out, err := exec.Command(path, try...).CombinedOutput(); err != nil {
		t.Skipf("%s does not run here: %v: %s", name, err, out)
	}
	return path
}

// moto is a server of moto's, which plays Amazon.
type moto struct{ url string }

// start runs moto's server until the test's end.
func start(t *testing.T) moto {
	t.Helper()
	path := program(t, "moto_server", "--help")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	cmd := exec.CommandContext(t.Context(), path, "-H", "127.0.0.1", "-p", port)
	log, err := os.Create(filepath.Join(t.TempDir(), "moto.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
	})
	m := moto{"http://127.0.0.1:" + port}
	testwait.Nil(t, "moto answers", func() error {
		answer, err := http.Get(m.url + "/moto-api/data.json")
		if err != nil {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("%w\n%s", err, text)
		}
		return answer.Body.Close()
	})
	return m
}

// ask sends a query without a signature, and returns the answer's parts that a pattern takes.
func (m moto) ask(t *testing.T, service, pattern, query string) []string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, m.url, strings.NewReader(query))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization",
		"AWS4-HMAC-SHA256 Credential=AKIAADMIN/20260101/"+region+"/"+service+"/aws4_request, SignedHeaders=host, Signature=0")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	found := regexp.MustCompile(pattern).FindStringSubmatch(string(body))
	if err != nil || answer.StatusCode != http.StatusOK || found == nil {
		t.Fatalf("%s: %v %s %s", query, err, answer.Status, body)
	}
	return found[1:]
}

// enforce has moto check signatures and policies, or not.
func (m moto) enforce(t *testing.T, on bool) {
	t.Helper()
	count := "inf"
	if on {
		count = "0"
	}
	answer, err := http.Post(m.url+"/moto-api/reset-auth", "text/plain", strings.NewReader(count))
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(err, answer)
	}
	answer.Body.Close()
}

// network makes a VPC with two network interfaces and a routing table of their subnet, and returns them for the
// metadata.
func (m moto) network(t *testing.T) *fake.Network {
	t.Helper()
	vpc := m.ask(t, "ec2", `<vpcId>(.*?)</vpcId>`, "Action=CreateVpc&Version=2016-11-15&CidrBlock=172.31.0.0/16")[0]
	sub := m.ask(t, "ec2", `<subnetId>(.*?)</subnetId>`,
		"Action=CreateSubnet&Version=2016-11-15&CidrBlock=172.31.0.0/20&VpcId="+vpc)[0]
	table := m.ask(t, "ec2", `<routeTableId>(.*?)</routeTableId>`,
		"Action=CreateRouteTable&Version=2016-11-15&VpcId="+vpc)[0]
	m.ask(t, "ec2", `<associationId>(.*?)</associationId>`,
		"Action=AssociateRouteTable&Version=2016-11-15&SubnetId="+sub+"&RouteTableId="+table)
	n := &fake.Network{ID: vpc}
	for i := range 2 {
		a := netip.AddrFrom4([4]byte{172, 31, 0, byte(10 + i)})
		eni := m.ask(t, "ec2", `<networkInterfaceId>(.*?)</networkInterfaceId>`,
			"Action=CreateNetworkInterface&Version=2016-11-15&SubnetId="+sub+"&PrivateIpAddress="+a.String())[0]
		n.AddNIC(fake.NIC{ID: eni, Instance: fmt.Sprint("i-", i), Subnet: sub, Addrs: []netip.Addr{a}})
	}
	return n
}

// nodes returns the API of a VPC's two machines. Their metadata is the front's, because moto has none of interfaces.
func (m moto) nodes(t *testing.T, n *fake.Network) (w cloudtest.World) {
	t.Helper()
	w.Six, w.Overwrites = true, true
	t.Setenv("AWS_ENDPOINT_URL", m.url)
	for i, nic := range n.NICs() {
		s := httptest.NewServer(fake.AWS(n, fake.AWSOptions{Caller: func(*http.Request) (fake.NIC, bool) {
			return nic,
				true
		}}))
		t.Cleanup(s.Close)
		t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
		c, err := aws.New(cloud.Options{Pools: pools})
		if err != nil {
			t.Fatal(err)
		}
		w.Nodes[i], w.Local[i] = c, nic.Addrs
	}
	return w
}

// TestMoto: the client passes the suite against moto's EC2, and turns the source/destination check off there.
func TestMoto(t *testing.T) {
	m := start(t)
	cloudtest.Run(t, func(t *testing.T) cloudtest.World {
		clean(t)
		return m.nodes(t, m.network(t))
	})
	clean(t)
	n := m.network(t)
	w := m.nodes(t, n)
	s, err := w.Nodes[0].Self(t.Context(), w.Local[0])
	if err != nil {
		t.Fatal(err)
	}
	check := func(i int) string {
		return m.ask(t, "ec2", `<sourceDestCheck>(.*?)</sourceDestCheck>`,
			"Action=DescribeNetworkInterfaces&Version=2016-11-15&NetworkInterfaceId.1="+n.NICs()[i].ID)[0]
	}
	if check(0) != "true" {
		t.Error("the check is off before")
	}
	if troubles, err := w.Nodes[0].Check(t.Context(), s); err != nil || len(troubles) > 0 {
		t.Errorf("%+v, %v", troubles, err)
	}
	if check(0) != "false" || check(1) != "true" {
		t.Errorf("source/destination checks: %s, %s; want false of the node's own, true of the other's", check(0), check(1))
	}
	if all, err := w.Nodes[0].List(t.Context(), s); err != nil || slices.ContainsFunc(all,
		func(r cloud.Route) bool { return r.Target != "local" }) {
		t.Errorf("the check of permissions has left %v, %v", all, err)
	}
}

// page is where users find the policy.
const page = "../../../Documentation/backends/aws-vpc.md"

// policy returns the documented policy, and its actions.
func policy(t *testing.T) (document map[string]any, actions []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		document = nil
		if json.Unmarshal([]byte(block[1]), &document) == nil && document["Statement"] != nil {
			for _, a := range document["Statement"].([]any)[0].(map[string]any)["Action"].([]any) {
				actions = append(actions, a.(string))
			}
			return document, actions
		}
	}
	t.Fatalf("%s has no policy", page)
	return nil, nil
}

// everything does all that a node ever does, and returns what failed.
func everything(ctx context.Context, w cloudtest.World) (failures []string) {
	failed := func(what string, err error) {
		switch {
		case err == nil || errors.Is(err, cloud.ErrGone): // that is because it could not be made
			return
		case !errors.Is(err, cloud.ErrDenied):
			what += " for another reason: " + err.Error()
		}
		failures = append(failures, what)
	}
	c := w.Nodes[0]
	self, err := c.Self(ctx, w.Local[0])
	failed("Self", err)
	if err != nil {
		return failures
	}
	_, err = c.List(ctx, self)
	failed("List", err)
	r := cloud.Route{Table: self.Tables[0], Dst: netip.MustParsePrefix("10.244.1.0/24"), Target: self.Target}
	for _, op := range []cloud.Op{cloud.Create, cloud.Replace, cloud.Delete} {
		failed([...]string{"Create", "Replace", "Delete"}[op], c.Apply(ctx, self, cloud.Change{Op: op, Route: r, Old: r}))
	}
	troubles, err := c.Check(ctx, self)
	failed("Check", err)
	for _, t := range troubles {
		failures = append(failures, t.ID+" "+t.Object)
	}
	return failures
}

// TestPolicy: with the documented policy everything works, and nothing of it can be left out. moto checks signatures
// and the actions of policies, not their resources.
func TestPolicy(t *testing.T) {
	document, actions := policy(t)
	m := start(t)
	clean(t)
	n := m.network(t)
	m.ask(t, "iam", "(Arn)", "Action=CreateUser&Version=2010-05-08&UserName=node")
	key := m.ask(t, "iam", `(?s)<AccessKeyId>(.*?)</AccessKeyId>.*<SecretAccessKey>(.*?)</SecretAccessKey>`,
		"Action=CreateAccessKey&Version=2010-05-08&UserName=node")
	t.Setenv("AWS_ACCESS_KEY_ID", key[0])
	t.Setenv("AWS_SECRET_ACCESS_KEY", key[1])
	allow := func(actions []string) {
		document["Statement"].([]any)[0].(map[string]any)["Action"] = actions
		text, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		m.enforce(t, false)
		m.ask(t, "iam", "(RequestId)",
			"Action=PutUserPolicy&Version=2010-05-08&UserName=node&PolicyName=twill&PolicyDocument="+
				url.QueryEscape(string(text)))
		m.enforce(t, true)
	}
	allow(actions)
	if failures := everything(t.Context(), m.nodes(t, n)); len(failures) > 0 {
		t.Errorf("with the documented policy: %q", failures)
	}
	for i, without := range actions {
		m.enforce(t, false)
		n = m.network(t) // the source/destination check is on
		allow(slices.Delete(slices.Clone(actions), i, i+1))
		failures := everything(t.Context(), m.nodes(t, n))
		t.Logf("without %s: %q", without, failures)
		named := slices.ContainsFunc(failures, func(f string) bool { return strings.HasPrefix(f, "cloud-denied "+without) })
		if len(failures) == 0 || !named && !slices.Contains(failures, "Self") {
			t.Errorf("without %s: %q, want something to fail, and the permission to be named", without, failures)
		}
		for _, f := range failures {
			if strings.Contains(f, "another reason") {
				t.Errorf("without %s: %s", without, f)
			}
		}
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "wrong"+key[1])
	_, err := m.nodes(t, n).Nodes[0].Self(t.Context(), n.NICs()[0].Addrs)
	if !errors.Is(err, cloud.ErrDenied) || strings.Contains(err.Error(), key[1]) {
		t.Errorf("with a wrong secret: %v", err)
	}
}
