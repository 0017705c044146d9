package ui

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strings"
)

// guard lets nobody read or do anything but who has the token, and no page of another origin even ask. Whoever may open
// a connection to loopback, such as another user of the machine or a web page in the user's browser, gets the page's
// empty frame at most.
type guard struct {
	token string
	hosts []string // that the Host header may have
	next  http.Handler
}

// newToken returns 256 random bits, as text for an address.
func newToken() string {
	b := make([]byte, 32)
	rand.Read(b) // it never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// hostsOf returns the names under which a listener on loopback is reached. Any other Host header is a name that was made
// to lead here (DNS rebinding).
func hostsOf(a net.Addr) []string {
	_, port, err := net.SplitHostPort(a.String())
	if err != nil {
		return nil
	}
	return []string{a.String(), net.JoinHostPort("localhost", port)}
}

// policy is the page's Content-Security-Policy: its own script and style, its own server, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (g guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	switch {
	case !slices.Contains(g.hosts, r.Host):
		fail(w, http.StatusForbidden, "the Host header is not this server's: open the address that twillctl ui printed")
	case !g.sameOrigin(r):
		fail(w, http.StatusForbidden, "a page of another origin may not ask")
	case strings.HasPrefix(r.URL.Path, "/api/") && !g.mayAsk(r):
		fail(w, http.StatusUnauthorized, "the token is missing or wrong: open the address that twillctl ui printed")
	default:
		g.next.ServeHTTP(w, r)
	}
}

// sameOrigin reports whether the request comes from the page itself, from no page, or from the address bar.
func (g guard) sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		host, ok := strings.CutPrefix(origin, "http://")
		return ok && host == r.Host
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "same-origin" || site == "none" || r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

func (g guard) mayAsk(r *http.Request) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(token), []byte(g.token)) == 1
}
