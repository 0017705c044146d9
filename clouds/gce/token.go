package gce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"github.com/twill-net/twill/internal/smallfile"
)

const (
	// keyFileVariable names a service account's key file, as of Google's libraries. Without it, the service account is the
	// machine's.
	keyFileVariable = "GOOGLE_APPLICATION_CREDENTIALS"
	scope           = "https://www.googleapis.com/auth/compute"
	tokenAddress    = "https://oauth2.googleapis.com/token" //nolint:gosec // an address, not a token
	// freshEnough is how long a token must still be valid: the metadata service has a new one five minutes before.
	freshEnough = 2 * time.Minute
)

// tokens keeps the token that requests are made with.
type tokens struct {
	fetch func(context.Context) (*oauth2.Token, error)

	mu   sync.Mutex
	last *oauth2.Token
}

// get returns a token that is valid for a while.
func (t *tokens) get(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last != nil && time.Until(t.last.Expiry) > freshEnough {
		return t.last.AccessToken, nil
	}
	token, err := t.fetch(ctx)
	if err != nil {
		return "", err
	}
	if token.AccessToken == "" {
		return "", errors.New("the answer to the request for a token has none")
	}
	t.last = token
	return token.AccessToken, nil
}

// forget drops a token that was refused.
func (t *tokens) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = nil
}

// token returns one of the machine's service account.
func (m metadata) token(ctx context.Context) (*oauth2.Token, error) {
	text, err := m.get(ctx, "instance/service-accounts/default/token")
	if err != nil {
		return nil, fmt.Errorf("get a token of the machine's service account (has it one?): %w", err)
	}
	var t oauth2.Token
	if json.Unmarshal([]byte(text), &t) != nil { // the error would quote the token
		return nil, errors.New("the metadata service's token is not one")
	}
	t.Expiry = time.Now().Add(time.Duration(t.ExpiresIn) * time.Second)
	return &t, nil
}

// keyFile is a service account's key.
type keyFile struct {
	path string
	http *http.Client
}

// key is what a key file has.
type key struct {
	Type         string `json:"type"`
	ClientEmail  string `json:"client_email"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	TokenURI     string `json:"token_uri"`
}

func (f keyFile) read() (k key, err error) {
	text, err := smallfile.Read(f.path, smallfile.MB)
	if err != nil {
		return k, fmt.Errorf("read the key file that %s names: %w", keyFileVariable, err)
	}
	switch {
	case json.Unmarshal(text, &k) != nil: // the error would quote the file
		return k, fmt.Errorf("%s, which %s names, is not JSON", f.path, keyFileVariable)
	case k.Type != "service_account" || k.ClientEmail == "" || k.PrivateKey == "":
		return k, fmt.Errorf("%s, which %s names, is not a service account's key file: its type is %q",
			f.path, keyFileVariable, oneLine(k.Type))
	}
	if k.TokenURI == "" {
		k.TokenURI = tokenAddress
	}
	return k, nil
}

// token asks for one by a request that is signed with the key.
func (f keyFile) token(ctx context.Context) (*oauth2.Token, error) {
	k, err := f.read()
	if err != nil {
		return nil, err
	}
	c := jwt.Config{Email: k.ClientEmail, PrivateKey: []byte(k.PrivateKey), PrivateKeyID: k.PrivateKeyID, TokenURL: k.TokenURI,
		Scopes: []string{scope}}
	t, err := c.TokenSource(context.WithValue(ctx, oauth2.HTTPClient, f.http)).Token()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("get a token for %s: %w", k.ClientEmail, ctx.Err())
	case err != nil:
		return nil, refused(k.ClientEmail, err)
	}
	return t, nil
}

// refused returns why there is no token. What the server answers is not printed but for its code.
func refused(account string, err error) error {
	if answer := (*oauth2.RetrieveError)(nil); errors.As(err, &answer) {
		return fmt.Errorf("get a token for %s: the answer is %s", account, answer.Response.Status)
	}
	return fmt.Errorf("get a token for %s: %s", account, oneLine(err.Error()))
}
