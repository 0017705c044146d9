package fake

import (
	"crypto/hmac"
	"crypto/sha1" // Alibaba's signatures use it
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twill-net/twill/cloud"
)

// AliOptions are what a Network does not know of an Alibaba Cloud VPC.
type AliOptions struct {
	Region    string                  // empty: cn-hangzhou
	Block     netip.Prefix            // the VPC's
	VSwitches map[string]netip.Prefix // blocks of NICs' subnets; a route's destination must not be in one
	Keys      map[string]string       // access key IDs and their secrets
	Role      string                  // the instances' RAM role, whose access keys the metadata service lends
	TokenOnly bool                    // the metadata service wants a token
	Slow      *atomic.Bool            // while it is set, a change of routes goes on, and no other is possible

	// Caller returns whose metadata a request asks for; nil: of the NIC with the remote address.
	Caller func(*http.Request) (NIC, bool)
	// Judge sees each request of the API that has a right signature.
	Judge func(action string, parameters url.Values)
	// Failed sees each request of the API that is refused.
	Failed func(action, code, message string)
}

// Ali serves a Network as Alibaba Cloud's APIs of VPC and ECS, and as the metadata service of its instances. A NIC's ID is
// that of its instance, because routes name instances; its network interface is eni-<the rest of the ID>.
func Ali(n *Network, o AliOptions) http.Handler {
	if o.Region == "" {
		o.Region = "cn-hangzhou"
	}
	if o.Caller == nil {
		o.Caller = func(r *http.Request) (NIC, bool) {
			from, err := netip.ParseAddrPort(r.RemoteAddr)
			return n.NIC(func(nic NIC) bool { return err == nil && slices.Contains(nic.Addrs, from.Addr().Unmap()) })
		}
	}
	a := &ali{Network: n, o: o, nonces: map[string]bool{}, made: map[string]bool{}, lent: map[string]aliLent{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/latest/", a.metadata)
	mux.HandleFunc("/{$}", a.serve)
	return mux
}

// ali is the front of a Network.
type ali struct {
	*Network
	o AliOptions

	mu       sync.Mutex
	nonces   map[string]bool
	made     map[string]bool    // the routes that were made, by table and destination
	changing bool               // somebody has changed routes
	lent     map[string]aliLent // access keys of the role
	number   int                // of the latest request
}

// aliLent is an access key of a role.
type aliLent struct {
	secret, token string
	until         time.Time
}

// aliError is an answer of Alibaba's that is an error.
type aliError struct {
	status        int
	code, message string
}

func (e aliError) Error() string { return e.code + ": " + e.message }

// serve answers a request of the API.
func (a *ali) serve(w http.ResponseWriter, r *http.Request) {
	if a.Faults().Away {
		hangUp(w)
		return
	}
	a.mu.Lock()
	a.number++
	id := fmt.Sprintf("%08X-0000-4000-8000-000000000000", a.number)
	a.mu.Unlock()
	answer, err := a.answer(r)
	if err == nil {
		answer["RequestId"] = id
		writeAli(w, http.StatusOK, answer)
		return
	}
	var e aliError
	if !errors.As(err, &e) {
		e = aliClass(r.Form.Get("Action"), err)
	}
	if a.o.Failed != nil {
		a.o.Failed(r.Form.Get("Action"), e.code, e.message)
	}
	writeAli(w, e.status, map[string]any{"RequestId": id, "HostId": r.Host, "Code": e.code, "Message": e.message,
		"Recommend": "https://api.alibabacloud.com/troubleshoot?q=" + e.code})
}

// hangUp ends a connection without an answer.
func hangUp(w http.ResponseWriter) {
	if h, ok := w.(http.Hijacker); ok {
		if conn, _, err := h.Hijack(); err == nil {
			conn.Close()
		}
	}
}

func writeAli(w http.ResponseWriter, status int, answer map[string]any) {
	w.Header().Set("Content-Type", "application/json;charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// aliClass returns the documented error of a class.
func aliClass(action string, err error) aliError {
	for class, e := range map[error]aliError{
		cloud.ErrThrottled: {http.StatusBadRequest, "Throttling.User", "Request was denied due to user flow control."},
		cloud.ErrBusy: {http.StatusBadRequest, "TaskConflict",
			"The operation is too frequent, please wait a moment and try again."},
		cloud.ErrFull: {http.StatusBadRequest, "QuotaExceeded", "Route entry quota exceeded in this route table."},
		cloud.ErrDenied: {http.StatusForbidden, "Forbidden.RAM", "User not authorized to operate on the specified resource, " +
			"or this API doesn't support RAM."},
		cloud.ErrExists: {http.StatusBadRequest, "InvalidCIDRBlock.Duplicate", "Specified CIDR block is already exists."},
		cloud.ErrGone:   {http.StatusBadRequest, "InvalidRouteEntry.NotFound", "Route entry not exists."},
	} {
		if errors.Is(err, class) {
			return e
		}
	}
	return aliError{http.StatusInternalServerError, "InternalError",
		"The request processing has failed due to some unknown error: " + action}
}

// answer checks a request and carries it out.
func (a *ali) answer(r *http.Request) (map[string]any, error) {
	if err := r.ParseForm(); err != nil {
		return nil, aliError{http.StatusBadRequest, "InvalidParameter", "The parameters are not URL-encoded."}
	}
	action, err := aliAction(r.Form)
	if err != nil {
		return nil, err
	}
	if err := a.verify(r.Method, r.Form); err != nil {
		return nil, err
	}
	if err := action.check(r.Form); err != nil {
		return nil, err
	}
	if region := r.Form.Get("RegionId"); region != "" && region != a.o.Region {
		return nil, aliError{http.StatusNotFound, "InvalidRegionId.NotFound", "The specified RegionId does not exist."}
	}
	name := r.Form.Get("Action")
	if a.o.Judge != nil {
		a.o.Judge(name, r.Form)
	}
	if slices.Contains(a.Faults().Denied, action.product+":"+name) {
		return nil, cloud.ErrDenied
	}
	if err := a.Call(action.method); err != nil {
		return nil, err
	}
	return action.do(a, r.Form)
}

// verify checks the signature, version 1.0 in the query.
func (a *ali) verify(method string, form url.Values) error {
	for name, want := range map[string]string{"SignatureMethod": "HMAC-SHA1", "SignatureVersion": "1.0", "Format": "JSON"} {
		if got := form.Get(name); !strings.EqualFold(got, want) {
			return aliError{http.StatusBadRequest, "InvalidParameter." + name,
				fmt.Sprintf("The value of %s is %q, want %q.", name, got, want)}
		}
	}
	at, err := time.Parse("2006-01-02T15:04:05Z", form.Get("Timestamp"))
	if err != nil {
		return aliError{http.StatusBadRequest, "InvalidTimeStamp.Format",
			"Specified time stamp or date value is not well formatted."}
	}
	if age := time.Since(at); age > 15*time.Minute || age < -15*time.Minute {
		return aliError{http.StatusBadRequest, "InvalidTimeStamp.Expired",
			"Specified time stamp or date value is expired."}
	}
	secret, err := a.secret(form.Get("AccessKeyId"), form.Get("SecurityToken"))
	if err != nil {
		return err
	}
	toSign := aliStringToSign(method, form)
	if !hmac.Equal([]byte(aliSign(toSign, secret)), []byte(form.Get("Signature"))) {
		return aliError{http.StatusBadRequest, "SignatureDoesNotMatch",
			"Specified signature is not matched with our calculation. server string to sign is:" + toSign}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	nonce := form.Get("SignatureNonce")
	if nonce == "" || a.nonces[nonce] {
		return aliError{http.StatusBadRequest, "SignatureNonceUsed", "Specified signature nonce was used already."}
	}
	a.nonces[nonce] = true
	return nil
}

// secret returns that of an access key.
func (a *ali) secret(id, token string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if lent, ok := a.lent[id]; ok {
		switch {
		case token != lent.token:
			return "", aliError{http.StatusBadRequest, "InvalidSecurityToken.MismatchWithAccessKey",
				"Specified SecurityToken mismatch with the AccessKey."}
		case time.Now().After(lent.until):
			return "", aliError{http.StatusBadRequest, "InvalidSecurityToken.Expired",
				"Specified SecurityToken is expired."}
		}
		return lent.secret, nil
	}
	if secret, ok := a.o.Keys[id]; ok && token == "" {
		return secret, nil
	}
	return "", aliError{http.StatusNotFound, "InvalidAccessKeyId.NotFound", "Specified access key is not found."}
}

// aliStringToSign returns what a signature is of.
func aliStringToSign(method string, form url.Values) string {
	var pairs []string
	for name, values := range form {
		if name != "Signature" {
			pairs = append(pairs, aliEscape(name)+"="+aliEscape(values[0]))
		}
	}
	sort.Strings(pairs)
	return method + "&" + aliEscape("/") + "&" + aliEscape(strings.Join(pairs, "&"))
}

func aliSign(text, secret string) string {
	mac := hmac.New(sha1.New, []byte(secret+"&"))
	mac.Write([]byte(text))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// aliEscape escapes as RFC 3986 says.
func aliEscape(text string) string {
	return strings.NewReplacer("+", "%20", "*", "%2A", "%7E", "~").Replace(url.QueryEscape(text))
}
