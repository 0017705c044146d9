package aws

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// TestLateBody: a transport that writes the request late, when the answer has begun, sends it to its end. The SDK has
// closed its own body by then.
func TestLateBody(t *testing.T) {
	var late io.Reader
	transport := transportFunc(func(r *http.Request) (*http.Response, error) {
		late = r.Body
		return &http.Response{Status: "502 Bad Gateway", StatusCode: http.StatusBadGateway, Body: http.NoBody,
			Header: http.Header{}, Request: r}, nil
	})
	api := ec2.New(ec2.Options{Region: "eu-west-1", HTTPClient: wire(transport, "xml"), Retryer: awssdk.NopRetryer{},
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", "")})
	if _, err := api.DescribeRouteTables(t.Context(), &ec2.DescribeRouteTablesInput{}); err == nil {
		t.Fatal("no error of an answer 502")
	}
	var sent bytes.Buffer
	if _, err := io.Copy(&sent, late); err != nil || !strings.Contains(sent.String(), "Action=DescribeRouteTables") {
		t.Errorf("the body ends with %v: %q", err, sent.String())
	}
}

// transportFunc is a function as http.RoundTripper.
type transportFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
