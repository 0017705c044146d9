package gce

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/twill-net/twill/cloud"
	"github.com/twill-net/twill/internal/loop"
)

// maxAnswer is more than 500 routes take, each with a description of 2,048 characters.
const maxAnswer = 8 << 20

// request is one call of the compute API.
type request struct {
	method  string // as the API's reference names it
	verb    string
	path    string
	query   url.Values
	in      any
	timeout time.Duration // zero: requestTimeout
}

// call makes a request and decodes the answer.
func (c *client) call(ctx context.Context, r request, out any) error {
	timeout := r.timeout
	if timeout == 0 {
		timeout = requestTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	token, err := c.tokens.get(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", r.method, err)
	}
	status, body, err := c.send(ctx, r, token)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", r.method, err)
	case status == http.StatusUnauthorized:
		c.tokens.forget()
		fallthrough
	case status < 200 || status > 299:
		return r.failure(status, body, token)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%s: the answer is not what the API documents: %w", r.method, err)
	}
	return nil
}

// send makes a request and reads the answer.
func (c *client) send(ctx context.Context, r request, token string) (status int, body []byte, err error) {
	address := c.api + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	var in io.Reader
	if r.in != nil {
		text, err := json.Marshal(r.in)
		if err != nil {
			return 0, nil, err
		}
		in = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, r.verb, address, in)
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if r.in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1)); err != nil {
		return 0, nil, fmt.Errorf("read the answer: %w", err)
	}
	if len(body) > maxAnswer {
		return 0, nil, fmt.Errorf("the answer is larger than %d bytes", maxAnswer)
	}
	return res.StatusCode, body, nil
}

// failure returns the error that an answer says.
func (r request) failure(status int, body []byte, token string) error {
	var e struct {
		Error struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason string `json:"reason"`
			} `json:"errors"`
		} `json:"error"`
	}
	text := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" {
		text += ", not in the API's form"
		if class := r.class(status, ""); class != nil && status != http.StatusNotFound {
			return fmt.Errorf("%s: %s: %w", r.method, text, class)
		}
		return fmt.Errorf("%s: %s", r.method, text)
	}
	reason := ""
	if len(e.Error.Errors) > 0 {
		reason = e.Error.Errors[0].Reason
		text = strings.TrimSpace(fmt.Sprintf("%d %s", status, reason))
	}
	message := strings.ReplaceAll(text+": "+e.Error.Message, token, "(secret)")
	if class := r.class(status, reason); class != nil {
		return fmt.Errorf("%s: %s: %w", r.method, oneLine(message), class)
	}
	return fmt.Errorf("%s: %s", r.method, oneLine(message))
}

// class returns the class of an error, nil if it is of none. Reasons are those of an answer's errors and of an operation's,
// which are written differently: quotaExceeded, QUOTA_EXCEEDED.
func (r request) class(status int, reason string) error {
	ofRoute := r.method == "routes.get" || r.method == "routes.delete"
	switch strings.ToLower(strings.ReplaceAll(reason, "_", "")) {
	case "ratelimitexceeded", "userratelimitexceeded", "resourceoperationrateexceeded", "operationrateexceeded":
		return cloud.ErrThrottled
	case "quotaexceeded", "limitexceeded":
		if r.method == "routes.insert" {
			return cloud.ErrFull
		}
		return cloud.ErrThrottled
	case "resourcenotready", "resourceinuse", "resourceinusebyanotherresource", "concurrentoperation", "conditionnotmet":
		return cloud.ErrBusy
	case "alreadyexists", "resourcealreadyexists":
		return cloud.ErrExists
	case "forbidden", "insufficientpermissions", "permissionserror", "accessnotconfigured":
		return cloud.ErrDenied
	case "notfound", "resourcenotfound":
		if ofRoute {
			return cloud.ErrGone
		}
		return nil
	}
	switch status {
	case http.StatusTooManyRequests:
		return cloud.ErrThrottled
	case http.StatusUnauthorized, http.StatusForbidden:
		return cloud.ErrDenied
	case http.StatusConflict, http.StatusPreconditionFailed:
		return cloud.ErrBusy
	case http.StatusNotFound:
		if ofRoute {
			return cloud.ErrGone
		}
	}
	return nil
}

// operation is a change under way.
type operation struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Error  struct {
		Errors []struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"errors"`
	} `json:"error"`
	HTTPErrorStatusCode int `json:"httpErrorStatusCode"`
}

// wait returns when a change has been made. The API's wait returns before that if it has much to do.
func (c *client) wait(ctx context.Context, n network, method string, op operation) error {
	began := time.Now()
	for op.Status != "DONE" {
		if !isName(op.Name) {
			return fmt.Errorf("%s: the answer names no operation to wait for", method)
		}
		left := operationTimeout - time.Since(began)
		if left <= 0 {
			return fmt.Errorf("%s: operation %s is %s after %s: %w",
				method, op.Name, oneLine(op.Status), operationTimeout, cloud.ErrBusy)
		}
		asked := time.Now()
		path := "projects/" + n.project + "/global/operations/" + op.Name + "/wait"
		err := c.call(ctx, request{method: "globalOperations.wait", verb: http.MethodPost, path: path, timeout: left}, &op)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		if op.Status != "DONE" && !loop.Sleep(ctx, time.Second-time.Since(asked)) {
			return ctx.Err()
		}
	}
	if len(op.Error.Errors) == 0 {
		return nil
	}
	e := op.Error.Errors[0]
	text := fmt.Sprintf("%s: operation %s: %s", method, op.Name, oneLine(e.Code+": "+e.Message))
	if class := (request{method: method}).class(op.HTTPErrorStatusCode, e.Code); class != nil {
		return fmt.Errorf("%s: %w", text, class)
	}
	return errors.New(text)
}
