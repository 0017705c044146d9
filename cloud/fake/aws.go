package fake

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"html"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/twill-net/twill/cloud"
)

// AWSOptions are what a Network does not say of an Amazon VPC.
type AWSOptions struct {
	// Caller returns the NIC that a request of the instance metadata comes from; nil: the one with the sender's address.
	Caller func(*http.Request) (NIC, bool)
	Region string            // empty: eu-central-1
	CIDRs  []netip.Prefix    // of the VPC
	Keys   map[string]string // secrets of users, by access key ID; the instance role has its own
	// PageSize is how many items of a list an answer has; 0: as many as were asked for.
	PageSize int
}

// AWS returns a server of a Network that speaks as Amazon does: EC2's query API at /, with signatures of version 4, and
// the instance metadata service (version 2 only) at /latest. One address may serve both. While Faults.Away is set only
// the metadata service answers: it is the machine's host.
func AWS(n *Network, o AWSOptions) http.Handler {
	if o.Region == "" {
		o.Region = "eu-central-1"
	}
	a := &aws{Network: n, AWSOptions: o}
	if a.Caller == nil {
		a.Caller = n.byAddress
	}
	return a
}

type aws struct {
	*Network
	AWSOptions
	requests atomic.Uint64
}

// ServeHTTP implements http.Handler.
func (a *aws) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/latest"):
		a.metadata(w, r)
		return
	case a.Faults().Away:
		hangUp(w)
		return
	}
	request := fmt.Sprintf("%08x-7711-4000-8000-000000000000", a.requests.Add(1))
	answer, err := a.call(r, request)
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	if err != nil {
		problem := awsProblemOf(err)
		w.WriteHeader(problem.status)
		answer = answer.element("Response", func(x awsXML) awsXML {
			x = x.element("Errors", func(x awsXML) awsXML {
				return x.element("Error", func(x awsXML) awsXML {
					return x.text("Code", problem.code).text("Message",
						problem.message)
				})
			})
			return x.text("RequestID", request)
		})
	}
	_, _ = io.WriteString(w, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+string(answer)+"\n")
}

// awsXML is XML that is being written.
type awsXML string

func (x awsXML) text(name, value string) awsXML {
	return x + awsXML("<"+name+">"+html.EscapeString(value)+"</"+name+">")
}

func (x awsXML) element(name string, inside func(awsXML) awsXML) awsXML {
	return x + awsXML("<"+name+">") + inside("") + awsXML("</"+name+">")
}

// awsProblem is an error as EC2 reports it.
type awsProblem struct {
	status        int
	code, message string
}

func (p *awsProblem) Error() string { return p.code + ": " + p.message }

func awsRefuse(code, format string, args ...any) error {
	return &awsProblem{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// awsClasses are the classes of package cloud in EC2's words.
var awsClasses = []struct {
	class error
	awsProblem
}{
	{cloud.ErrThrottled, awsProblem{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}},
	{cloud.ErrBusy, awsProblem{http.StatusBadRequest, "IncorrectState",
		"The resource is in an incorrect state for the request."}},
	{cloud.ErrFull, awsProblem{http.StatusBadRequest, "RouteLimitExceeded",
		"The maximum number of routes has been reached."}},
	{cloud.ErrDenied, awsProblem{http.StatusForbidden, "UnauthorizedOperation",
		"You are not authorized to perform this operation."}},
	{cloud.ErrExists, awsProblem{http.StatusBadRequest, "RouteAlreadyExists", "The route already exists."}},
	{cloud.ErrGone, awsProblem{http.StatusBadRequest, "InvalidRoute.NotFound", "There is no such route."}},
}

func awsProblemOf(err error) *awsProblem {
	var p *awsProblem
	if errors.As(err, &p) {
		return p
	}
	for _, c := range awsClasses {
		if errors.Is(err, c.class) {
			return &c.awsProblem
		}
	}
	return &awsProblem{http.StatusInternalServerError, "InternalError", "An internal error has occurred"}
}

// call judges a request and carries it out. The answer is the whole XML of a success.
func (a *aws) call(r *http.Request, id string) (awsXML, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return "", awsRefuse("MalformedQueryString", "The body cannot be read.")
	}
	if r.Method != http.MethodPost || r.URL.Path != "/" || r.URL.RawQuery != "" {
		return "", awsRefuse("InvalidAction", "This server takes POST requests to / only.")
	}
	if err := a.signed(r, body); err != nil {
		return "", err
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return "", awsRefuse("MalformedQueryString", "The query string is malformed.")
	}
	q, err := a.judge(form)
	if err != nil {
		return "", err
	}
	if err := a.permit(q); err != nil {
		return "", err
	}
	inside, err := q.run(a, q)
	if err != nil {
		return "", err
	}
	name := q.name + "Response"
	return awsXML("<"+name+` xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">`) + awsXML("").text("requestId",
		id) + inside +
		awsXML("</"+name+">"), nil
}

// permit fails a call as the faults and the role's permissions say. A dry run ends here.
func (a *aws) permit(q awsQuery) error {
	method := q.method
	if q.get("DryRun") == "true" {
		method = "Check"
	}
	if err := a.Call(method); err != nil {
		return err
	}
	if slices.Contains(a.Faults().Denied, "ec2:"+q.name) {
		return &awsProblem{http.StatusForbidden, "UnauthorizedOperation",
			"You are not authorized to perform this operation. User: " +
				"arn:aws:sts::123456789012:assumed-role/" + awsRole + "/i-1 is not authorized to perform: ec2:" + q.name + " because no " +
				"identity-based policy allows the ec2:" + q.name + " action. Encoded authorization failure message: " + strings.Repeat("x1Y2", 100)}
	}
	if q.get("DryRun") == "true" {
		return &awsProblem{http.StatusPreconditionFailed, "DryRunOperation",
			"Request would have succeeded, but DryRun flag is set."}
	}
	return nil
}

// mac returns a NIC's address, or one made from its ID.
func (n NIC) mac() string {
	if n.MAC != "" {
		return n.MAC
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, n.ID)
	s := h.Sum(nil)
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", s[0], s[1], s[2], s[3])
}

// awsDigest returns a text that somebody who does not know the input cannot guess.
func awsDigest(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }
