package ali

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"unicode"

	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth"
	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/auth/credentials"
	"github.com/aliyun/alibaba-cloud-sdk-go/sdk/requests"
)

// maxAnswer is more than any page of any answer has.
const maxAnswer = 4 << 20

// product is one of Alibaba's APIs.
type product struct{ name, version string }

var (
	vpc = product{"Vpc", "2016-04-28"}
	ecs = product{"Ecs", "2014-05-26"}
)

// params are an action's. Those that all actions have are added.
type params map[string]string

// endpoint returns where a product's API of a region is: what VPC_ENDPOINT or ECS_ENDPOINT says, as with Alibaba's
// Terraform provider and cloud controller, else the one that instances without access to the Internet reach.
func (p product) endpoint(region string) (scheme, host string, err error) {
	scheme = "https"
	if strings.EqualFold(os.Getenv("ALICLOUD_CLIENT_SCHEME"), "http") {
		scheme = "http"
	}
	variable := strings.ToUpper(p.name) + "_ENDPOINT"
	text := strings.TrimSpace(os.Getenv(variable))
	if text == "" {
		network := "-vpc"
		if strings.EqualFold(os.Getenv("ALIBABA_CLOUD_NETWORK_TYPE"), "public") {
			network = ""
		}
		return scheme, fmt.Sprintf("%s%s.%s.aliyuncs.com", strings.ToLower(p.name), network, region), nil
	}
	if !strings.Contains(text, "://") {
		text = scheme + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" || len(u.Path) > 1 {
		return "", "", fmt.Errorf("%s is no host name and no URL as https://host", variable)
	}
	return u.Scheme, u.Host, nil
}

// call asks for one action, and decodes its answer.
func (a *api) call(ctx context.Context, p product, action string, ps params, answer any) error {
	region, err := a.where(ctx)
	if err != nil {
		return err
	}
	key, err := a.accessKey(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	request, err := p.request(ctx, region, key, action, ps)
	if err != nil {
		return fmt.Errorf("%s: %w", action, err)
	}
	response, err := a.http.Do(request)
	if err != nil {
		return fmt.Errorf("%s at %s: %w", action, request.URL.Host, bare(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("%s at %s: read the answer: %w", action, request.URL.Host, bare(err))
	}
	if len(body) > maxAnswer {
		return fmt.Errorf("%s at %s: the answer is longer than %d bytes", action, request.URL.Host, maxAnswer)
	}
	if response.StatusCode == http.StatusOK {
		if err := decode(body, answer); err != nil {
			return fmt.Errorf("%s at %s: %w", action, request.URL.Host, err)
		}
		return nil
	}
	failed := failure(action, response.StatusCode, body)
	if strings.HasPrefix(failed.code, "InvalidSecurityToken") {
		a.forgetRole()
	}
	return failed.redact(key.secret.Reveal(), key.token.Reveal(), request.URL.Query().Get("Signature"))
}

// request returns a signed request.
func (p product) request(
	ctx context.Context, region string, key accessKey, action string, ps params,
) (*http.Request, error) {
	scheme, host, err := p.endpoint(region)
	if err != nil {
		return nil, err
	}
	r := requests.NewCommonRequest()
	r.Method, r.Scheme, r.Domain = requests.POST, scheme, host
	r.Product, r.Version, r.ApiName = p.name, p.version, action
	for name, value := range ps {
		r.QueryParams[name] = value
	}
	r.TransToAcsRequest()
	signer := credentials.NewStaticSTSCredentialsProvider(key.id, key.secret.Reveal(), key.token.Reveal())
	if err := auth.Sign(r, nil, region, signer); err != nil {
		return nil, errors.New("the request cannot be signed")
	}
	request, err := http.NewRequestWithContext(ctx, r.Method, r.BuildUrl(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%s is no host to ask", host)
	}
	for name, value := range r.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("User-Agent", "twill")
	return request, nil
}

// decode reads an answer, which is one JSON object.
func decode(body []byte, answer any) error {
	if text := strings.TrimSpace(string(body[:min(len(body), 64)])); !strings.HasPrefix(text, "{") {
		return fmt.Errorf("the answer is no JSON object: it begins with %.40q", text)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("the answer is not as documented: %w", err)
	}
	return nil
}

// bare returns an error without the URL of its request, which has the signature in it.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// oneLine returns a text of somebody else's, fit for a log.
func oneLine(text string, length int) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)), " ")
	if runes := []rune(text); len(runes) > length {
		return string(runes[:length]) + "…"
	}
	return text
}
