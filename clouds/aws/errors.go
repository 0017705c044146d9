package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"unicode"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"github.com/twill-net/twill/cloud"
)

// classes are what EC2's error codes mean; retry.DefaultThrottleErrorCodes are ErrThrottled.
var classes = map[string]error{
	"ConcurrentMutationLimitExceeded": cloud.ErrBusy,
	"IncorrectState":                  cloud.ErrBusy,
	"RouteLimitExceeded":              cloud.ErrFull,
	"RouteAlreadyExists":              cloud.ErrExists,
	"InvalidRoute.NotFound":           cloud.ErrGone,
	"UnauthorizedOperation":           cloud.ErrDenied,
	"AccessDenied":                    cloud.ErrDenied,
	"AccessDeniedException":           cloud.ErrDenied,
	"AuthFailure":                     cloud.ErrDenied,
	"Blocked":                         cloud.ErrDenied,
	"InvalidClientTokenId":            cloud.ErrDenied,
	"OptInRequired":                   cloud.ErrDenied,
	"SignatureDoesNotMatch":           cloud.ErrDenied,
	"UnrecognizedClientException":     cloud.ErrDenied,
}

// class returns the class of an error of EC2's, nil if it is of none.
func class(e smithy.APIError) error {
	if _, ok := retry.DefaultThrottleErrorCodes[e.ErrorCode()]; ok {
		return cloud.ErrThrottled
	}
	// ReplaceRoute says this instead of InvalidRoute.NotFound.
	if e.ErrorCode() == "InvalidParameterValue" && strings.HasPrefix(e.ErrorMessage(), "There is no route defined for") {
		return cloud.ErrGone
	}
	return classes[e.ErrorCode()]
}

// explained is an error of the SDK's as one sentence without secrets.
type explained struct {
	text   string
	is     []error
	status int // of HTTP, 0 without an answer
}

func (e *explained) Error() string   { return e.text }
func (e *explained) Unwrap() []error { return e.is }

// explain returns what happened to a request, in a sentence that begins with what was asked.
func (c *client) explain(what string, err error) error {
	e := &explained{}
	for _, known := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			e.is = append(e.is, known)
		}
	}
	text := ""
	var api smithy.APIError
	var answer *awshttp.ResponseError
	var address *url.Error
	var network net.Error
	isAnswer := errors.As(err, &answer)
	if isAnswer {
		e.status = answer.HTTPStatusCode()
	}
	switch {
	case errors.As(err, &api) && api.ErrorCode() != "UnknownError":
		text = api.ErrorCode() + ": " + message(api)
		if of := class(api); of != nil {
			e.is = append(e.is, of)
			text = fmt.Sprintf("%s: %s", of, text)
		}
		if isAnswer && answer.ServiceRequestID() != "" {
			text += " (request " + answer.ServiceRequestID() + ")"
		}
	case isAnswer && answer.HTTPStatusCode() >= 300:
		text = fmt.Sprintf("HTTP %d, and the answer is not the service's: %v", answer.HTTPStatusCode(), innermost(answer))
	case errors.As(err, &network) && network.Timeout(), errors.Is(err, context.DeadlineExceeded):
		text = "no answer in time"
	case errors.As(err, &address):
		text = address.Err.Error()
	default:
		text = innermost(err).Error()
	}
	if strings.Contains(err.Error(), "failed to refresh cached credentials") {
		text = "no credentials, neither in the environment nor of a role of the instance: " + text
	}
	e.text = what + ": " + shorten(c.secrets.hide(text))
	return e
}

// message returns an error's message without the part that only Amazon can read.
func message(e smithy.APIError) string {
	text, _, _ := strings.Cut(e.ErrorMessage(), "Encoded authorization failure message:")
	return strings.TrimSpace(text)
}

func innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// shorten returns a text of somebody else's as part of one line.
func shorten(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }), " ")
	if r := []rune(s); len(r) > 500 {
		s = string(r[:500]) + "…"
	}
	if s == "" {
		return "(nothing)"
	}
	return s
}

// secrets are the credentials that were used, for keeping them out of messages.
type secrets struct {
	awssdk.CredentialsProvider
	mu   sync.Mutex
	used map[string]bool
}

// Retrieve implements aws.CredentialsProvider.
func (s *secrets) Retrieve(ctx context.Context) (awssdk.Credentials, error) {
	keys, err := s.CredentialsProvider.Retrieve(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = map[string]bool{keys.SecretAccessKey: true, keys.SessionToken: true}
	return keys, err
}

func (s *secrets) hide(text string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for secret := range s.used {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "(secret)")
			text = strings.ReplaceAll(text, url.QueryEscape(secret), "(secret)")
		}
	}
	return text
}
