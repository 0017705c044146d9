package aws

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	_ "github.com/aws/aws-sdk-go/aws/awserr" //nolint:staticcheck // keeps the module in go.mod: it has the model

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/cloud/cloudtest"
	"github.com/twill-net/twill/cloud/fake"
	"github.com/twill-net/twill/clouds/aws"
)

// model is Amazon's description of EC2's API.
type model struct {
	Operations map[string]struct{ Input, Output *member }
	Shapes     map[string]shape
}

type member struct{ Shape, LocationName, QueryName string }

type shape struct {
	Type     string
	Members  map[string]member
	Member   *member
	Required []string
	Enum     []string
	Min, Max *float64
}

func loadModel(t *testing.T) model {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/aws/aws-sdk-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "models/apis/ec2/2016-11-15/api-2.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m model
	if err := json.Unmarshal(text, &m); err != nil || len(m.Operations) < 500 {
		t.Fatalf("%d operations: %v", len(m.Operations), err)
	}
	return m
}

// request returns what the model says against a request.
func (m model) request(form url.Values) (wrong []string) {
	op, known := m.Operations[form.Get("Action")]
	if !known || form.Get("Version") != "2016-11-15" {
		return []string{"there is no action " + form.Get("Action") + " of version " + form.Get("Version")}
	}
	input := m.Shapes[op.Input.Shape]
	for name, values := range form {
		if name == "Action" || name == "Version" {
			continue
		}
		if err := m.parameter(input, strings.Split(name, "."), values[0]); err != nil || len(values) != 1 {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v", form.Get("Action"), name, err))
		}
	}
	for _, name := range input.Required {
		key := queryName(name, input.Members[name])
		if !slices.ContainsFunc(slices.Collect(keys(form)), func(k string) bool {
			return k == key || strings.HasPrefix(k,
				key+".")
		}) {
			wrong = append(wrong, form.Get("Action")+" lacks "+key)
		}
	}
	return wrong
}

func keys(form url.Values) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range form {
			if !yield(k) {
				return
			}
		}
	}
}

// queryName is a member's name in a request: EC2's protocol capitalizes what the XML has.
func queryName(name string, of member) string {
	switch {
	case of.QueryName != "":
		return of.QueryName
	case of.LocationName != "":
		return strings.ToUpper(of.LocationName[:1]) + of.LocationName[1:]
	}
	return name
}

// parameter follows the parts of a parameter's name through a shape. Lists have numbers instead of names.
func (m model) parameter(s shape, path []string, value string) error {
	if s.Type == "structure" {
		for name, of := range s.Members {
			if len(path) > 0 && queryName(name, of) == path[0] {
				return m.parameter(m.Shapes[of.Shape], path[1:], value)
			}
		}
		return errors.New("there is no such parameter")
	}
	if s.Type == "list" {
		if len(path) == 0 {
			return errors.New("an item of a list has a number")
		}
		if n, err := strconv.Atoi(path[0]); err != nil || n < 1 {
			return errors.New("an item of a list has a number from 1")
		}
		return m.parameter(m.Shapes[s.Member.Shape], path[1:], value)
	}
	if len(path) > 0 {
		return errors.New("it has no parts")
	}
	return s.value(value)
}

// value judges a simple value.
func (s shape) value(value string) error {
	switch s.Type {
	case "boolean":
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", value)
		}
	case "integer", "long":
		n, err := strconv.ParseFloat(value, 64)
		if err != nil || s.Min != nil && n < *s.Min || s.Max != nil && n > *s.Max {
			return fmt.Errorf("%q is no number that fits", value)
		}
	case "string":
		if len(s.Enum) > 0 && !slices.Contains(s.Enum, value) {
			return fmt.Errorf("%q is none of %v", value, s.Enum)
		}
	default:
		return fmt.Errorf("a %s is no simple value", s.Type)
	}
	return nil
}

// element is XML as it is.
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Children []element `xml:",any"`
}

// answer returns what the model says against an answer.
func (m model) answer(action string, status int, body []byte) (wrong []string) {
	var root element
	if err := xml.Unmarshal(body, &root); err != nil {
		return []string{fmt.Sprintf("%s: %v: %s", action, err, body)}
	}
	if status != http.StatusOK { // of which the model says nothing
		var e struct {
			XMLName   xml.Name `xml:"Response"`
			Code      string   `xml:"Errors>Error>Code"`
			Message   string   `xml:"Errors>Error>Message"`
			RequestID string
		}
		if err := xml.Unmarshal(body, &e); err != nil || e.Code == "" || e.Message == "" || e.RequestID == "" {
			wrong = append(wrong, fmt.Sprintf("%s: an error without its parts: %v %s", action, err, body))
		}
		return wrong
	}
	if want := (xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/",
		Local: action + "Response"}); root.XMLName != want {
		wrong = append(wrong, fmt.Sprintf("the root is %v, want %v", root.XMLName, want))
	}
	output := shape{Type: "structure", Members: map[string]member{}}
	if o := m.Operations[action].Output; o != nil {
		output = m.Shapes[o.Shape]
	}
	for _, c := range root.Children {
		if c.XMLName.Local == "requestId" || m.Operations[action].Output == nil && c.XMLName.Local == "return" {
			continue
		}
		wrong = append(wrong, m.child(action, output, c)...)
	}
	return wrong
}

// child judges an element by the shape that it is in.
func (m model) child(where string, in shape, e element) (wrong []string) {
	where += "/" + e.XMLName.Local
	if in.Type == "list" {
		if e.XMLName.Local != in.Member.LocationName {
			return []string{where + ": an item is called " + in.Member.LocationName}
		}
		return m.inside(where, m.Shapes[in.Member.Shape], e)
	}
	for name, of := range in.Members {
		if of.LocationName == e.XMLName.Local || of.LocationName == "" && name == e.XMLName.Local {
			return m.inside(where, m.Shapes[of.Shape], e)
		}
	}
	return []string{where + ": there is no such element"}
}

func (m model) inside(where string, s shape, e element) (wrong []string) {
	if s.Type == "structure" || s.Type == "list" {
		for _, c := range e.Children {
			wrong = append(wrong, m.child(where, s, c)...)
		}
		return wrong
	}
	if err := s.value(e.Text); err != nil || len(e.Children) > 0 {
		wrong = append(wrong, fmt.Sprintf("%s: %v", where, err))
	}
	return wrong
}

// judge passes requests on to a server, and has the model judge them and the answers.
type judge struct {
	model  model
	server http.Handler

	mu    sync.Mutex
	seen  map[string]int
	wrong map[string]bool
}

// ServeHTTP implements http.Handler.
func (j *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/" {
		j.server.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	form, err := url.ParseQuery(string(body))
	answer := httptest.NewRecorder()
	j.server.ServeHTTP(answer, r)
	wrong := append(j.model.request(form), j.model.answer(form.Get("Action"), answer.Code, answer.Body.Bytes())...)
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	j.mu.Lock()
	j.seen[fmt.Sprint(form.Get("Action"), " ", answer.Code)]++
	for _, text := range wrong {
		j.wrong[text] = true
	}
	j.mu.Unlock()
	for name, values := range answer.Header() {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes())
}

// report fails the test with all that is wrong.
func (j *judge) report(t *testing.T) {
	t.Helper()
	t.Logf("judged by the model: %v", j.seen)
	for text := range j.wrong {
		t.Error(text)
	}
}

// TestModel: what the client asks and what the front answers is as Amazon's model says, in the whole suite.
func TestModel(t *testing.T) {
	j := &judge{model: loadModel(t), seen: map[string]int{}, wrong: map[string]bool{}}
	cloudtest.Run(t, func(t *testing.T) cloudtest.World {
		clean(t)
		n := frontNetwork()
		w := cloudtest.World{Network: n, Six: true}
		for i, nic := range n.NICs()[:2] {
			s := httptest.NewServer(&judge{model: j.model, seen: j.seen, wrong: j.wrong, server: fake.AWS(n,
				fake.AWSOptions{PageSize: 1,
					Caller: func(*http.Request) (fake.NIC, bool) { return n.NIC(func(n fake.NIC) bool { return n.ID == nic.ID }) }})})
			t.Cleanup(s.Close)
			t.Setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", s.URL)
			t.Setenv("AWS_ENDPOINT_URL", s.URL)
			c, err := aws.New(cloud.Options{Pools: pools})
			if err != nil {
				t.Fatal(err)
			}
			w.Nodes[i], w.Local[i] = c, nic.Addrs
		}
		return w
	})
	j.report(t)
	for _, want := range []string{"DescribeRouteTables 200", "DescribeNetworkInterfaces 200", "CreateRoute 200",
		"CreateRoute 412",
		"CreateRoute 503", "ReplaceRoute 200", "DeleteRoute 200", "DeleteRoute 412", "ModifyNetworkInterfaceAttribute 200"} {
		if j.seen[want] == 0 {
			t.Errorf("there was no %s: this test proves nothing about it", want)
		}
	}
}

// TestModelRefuses: the judge sees what is wrong.
func TestModelRefuses(t *testing.T) {
	m := loadModel(t)
	for _, query := range []string{
		"Action=DescribeRoutes", "Action=DeleteRoute", "Action=DeleteRoute&RouteTableId=rtb-1&NetworkInterfaceId=eni-1",
		"Action=DeleteRoute&RouteTableId=rtb-1&DryRun=yes", "Action=DescribeRouteTables&MaxResults=1000",
		"Action=DescribeRouteTables&RouteTableId=rtb-1", "Action=DescribeRouteTables&Filter.1.Names=a",
		"Action=CreateRoute&RouteTableId=rtb-1&destinationCidrBlock=10.0.0.0/8",
	} {
		form, err := url.ParseQuery(query + "&Version=2016-11-15")
		if err != nil || len(m.request(form)) == 0 {
			t.Errorf("%s is right: %v", query, err)
		}
	}
	for _, body := range []string{"", "<a/>",
		`<DescribeRouteTablesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><routeTables/></DescribeRouteTablesResponse>`,
		`<DescribeRouteTablesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><routeTableSet><item><routeSet><item><state>up</state>` +
			`</item></routeSet></item></routeTableSet></DescribeRouteTablesResponse>`,
	} {
		if len(m.answer("DescribeRouteTables", http.StatusOK, []byte(body))) == 0 {
			t.Errorf("%q is right", body)
		}
	}
}
