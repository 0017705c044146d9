package ali

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/twill-net/twill/cloud"
)

// failed is an answer that is an error. It wraps its class, if it has one.
type failed struct {
	action, code, text, id string
	status                 int
	class                  error
}

// failure reads an answer that is an error.
func failure(action string, status int, body []byte) failed {
	f := failed{action: action, status: status}
	var answer struct{ Code, Message, RequestId string }
	if err := decode(body, &answer); err != nil || answer.Code == "" {
		f.text = "the answer has no error code"
		if err != nil {
			f.text = err.Error()
		}
		if status == http.StatusTooManyRequests {
			f.class = cloud.ErrThrottled
		}
		return f
	}
	f.code, f.text, f.id = oneLine(answer.Code, 80), oneLine(answer.Message, 300), oneLine(answer.RequestId, 64)
	f.class = class(action, answer.Code, answer.Message)
	if strings.HasPrefix(f.code, "SignatureDoesNotMatch") || strings.HasPrefix(f.code, "IncompleteSignature") {
		f.text = "the secret of the access key is not the right one" // the message has the whole request in it
	}
	if strings.EqualFold(f.code, "InvalidCidrBlock") && f.class == nil {
		f.text += " (destinations inside a vSwitch's block or 100.64.0.0/10 are refused: choose another Network)"
	}
	return f
}

// redact takes secrets out of the texts.
func (f failed) redact(secrets ...string) failed {
	for _, s := range secrets {
		if s == "" {
			continue
		}
		for _, text := range []*string{&f.code, &f.text, &f.id} {
			*text = strings.NewReplacer(s, "(secret)", url.QueryEscape(s), "(secret)").Replace(*text)
		}
	}
	return f
}

// Error implements error.
func (f failed) Error() string {
	text := fmt.Sprintf("%s: HTTP status %d", f.action, f.status)
	for _, s := range []string{f.code, f.text} {
		if s != "" {
			text += ": " + s
		}
	}
	if f.id != "" {
		text += " (request " + f.id + ")"
	}
	if f.class != nil {
		text += ": " + f.class.Error()
	}
	return text
}

// Unwrap returns the class.
func (f failed) Unwrap() error { return f.class }

// isUnpermitted reports whether an error is that a permission is missing, rather than that the access key is not good.
func isUnpermitted(err error) bool {
	var f failed
	code := ""
	if errors.As(err, &f) {
		code = strings.ToLower(f.code)
	}
	return errors.Is(err, cloud.ErrDenied) && slices.ContainsFunc([]string{"forbidden", "nopermission", "unauthorized"},
		func(start string) bool { return strings.HasPrefix(code, start) })
}

// codes are the documented error codes of a class, lower-case. One that ends in * stands for all that begin so.
var codes = []struct {
	class error
	codes []string
}{
	{cloud.ErrThrottled, []string{"throttling*", "flowcontrol*"}},
	{cloud.ErrBusy, []string{"taskconflict", "operationconflict", "incorrectrouteentrystatus", "incorrcetrouteentrystatus",
		"incorrectvpcstatus", "incorrectvswitchstatus", "incorrectinstancestatus", "incorrectstatus*",
		"invalidstatus.routeentry", "lasttokenprocessing", "operationfailed.idempotenttokenprocessing",
		"operationfailed.distibutelock", "operationdenied.othersubnetprocessing", "systembusy"}},
	{cloud.ErrFull, []string{"quotaexceeded*", "countlimitexceed*"}},
	{cloud.ErrExists, []string{"invalidcidrblock.duplicate", "routerentryconflict.duplicated", "invalidrouteentry.duplicate",
		"duplicated.vpcnexthop"}},
	{nil, []string{"forbidden.checkentryrulequota", "forbidden.vrouternotfound", "forbidden.vpcnotfound",
		"invalidsecuritytoken.expired"}},
	{cloud.ErrDenied, []string{"forbidden*", "nopermission*", "unauthorized*", "invalidaccesskeyid*", "missingaccesskeyid",
		"signaturedoesnotmatch*", "incompletesignature*", "invalidsecuritytoken*", "missingsecuritytoken"}},
}

// gone are the codes of a route that is not there, when one is deleted.
var gone = []string{"invalidrouteentry.notfound", "invalidrouteentryid.notfound", "invalidrouteentry", "routerentry.notfound"}

// class returns the class of an error code, nil for an error that is simply tried again.
func class(action, code, message string) error {
	code = strings.ToLower(code)
	if action == "DeleteRouteEntry" && slices.Contains(gone, code) {
		return cloud.ErrGone
	}
	if action == "CreateRouteEntry" && code == "invalidcidrblock" && strings.Contains(message, "already exist") {
		return cloud.ErrExists
	}
	for _, c := range codes {
		for _, known := range c.codes {
			if start, open := strings.CutSuffix(known, "*"); code == start || open && strings.HasPrefix(code, start) {
				return c.class
			}
		}
	}
	return nil
}
