package kube

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/kubeclient"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

// rotation is an API server whose certificate is replaced while it runs.
type rotation struct {
	*server
	dir    string
	ca     []byte                      // with which its certificate is verified
	people *controlplanetest.Authority // that signs clients' certificates
}

// rotated is an agent with a kubeconfig that is replaced while it runs.
type rotated struct {
	*rotation
	*testing.T
	account, node string
	at            string // the directory of kubeconfig and of what it names
	caInFile      bool
	token         string // the last that was made
	want          subnet.Lease
	waits         *reports
}

// TestCredentials: each credential that a kubeconfig holds or names is rotated, ends, or goes and comes back while the store
// runs. All connections are cut; then the store keeps its record, or says why it cannot until it can.
func TestCredentials(t *testing.T) {
	r := &rotation{dir: t.TempDir(), people: controlplanetest.NewAuthority(t, "people")}
	clients := filepath.Join(t.TempDir(), "clients.crt")
	must(t, os.WriteFile(clients, r.people.PEM, 0o600))
	r.server = startServer(t, controlplane.APIServerConfig{Dir: r.dir, Flags: []string{"--client-ca-file=" + clients}})
	r.ca = r.api.CA()
	users := map[string]func(*rotated){
		"token rotated":              (*rotated).tokenRotated,
		"token expired":              (*rotated).tokenExpired,
		"token in a file":            (*rotated).tokenInFile,
		"client certificate expired": (*rotated).certificateExpired,
		"kubeconfig gone and back":   (*rotated).kubeconfigGone,
	}
	authorities := map[string]func(*rotated){
		"CA changed":        (*rotated).caChanged,
		"CA changed late":   (*rotated).caChangedLate,
		"CA's file changed": (*rotated).caFileChanged,
		"CA's file gone":    (*rotated).caFileGone,
	}
	var accounts []string
	for i := range len(users) + len(authorities) {
		accounts = append(accounts, fmt.Sprintf("system:serviceaccount:default:rotated-%d", i))
	}
	must(t, r.api.ApplyAgentRBAC(t.Context(), append(accounts, agentUser)...))
	i := 0
	run := func(t *testing.T, name string, f func(*rotated), together bool) {
		a := &rotated{rotation: r, account: fmt.Sprintf("rotated-%d", i), node: fmt.Sprintf("rotated-%d", i)}
		a.want = subnet.Lease{Node: a.node, Backend: "vxlan", Stacks: slices.Clone(want4.Stacks)}
		a.want.Stacks[0].Underlay = netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})
		i++
		t.Run(name, func(t *testing.T) {
			if together {
				t.Parallel()
			}
			a.T, a.at = t, t.TempDir()
			r.createNode(t, testNode(a.node, fmt.Sprintf("10.244.%s.0/24", a.node[len("rotated-"):])))
			f(a)
			a.mustKeep()
		})
	}
	t.Run("who calls", func(t *testing.T) {
		for name, f := range users {
			run(t, name, f, true)
		}
	})
	for name, f := range authorities { // of which the API server has one at a time
		run(t, name, f, false)
	}
}

func (r *rotated) tokenRotated() {
	r.begin("token: " + r.newToken())
	next := r.endToken()
	r.write("token: " + next)
	r.reconnect()
}

func (r *rotated) tokenExpired() {
	r.begin("token: " + r.newToken())
	next := r.endToken()
	r.reconnect()
	r.mustWait("the API server does not know the credentials")
	r.write("token: " + next)
}

func (r *rotated) tokenInFile() {
	r.file("token", []byte(r.newToken()))
	r.begin("tokenFile: " + filepath.Join(r.at, "token"))
	r.file("token", []byte(r.endToken()))
	r.reconnect()
}

func (r *rotated) certificateExpired() {
	const life = 5 * time.Second
	ends := time.Now().Add(life)
	r.begin(r.certificate(ends))
	testwait.Pause(r.T, time.Until(ends)+time.Second, "the certificate ends")
	r.reconnect()
	r.mustWait("the API server does not know the credentials")
	r.write(r.certificate(time.Now().Add(time.Hour)))
}

func (r *rotated) kubeconfigGone() {
	r.begin("token: " + r.newToken())
	must(r.T, os.Remove(r.kubeconfig()))
	next := r.endToken()
	r.reconnect()
	r.mustWait("the API server does not know the credentials")
	r.write("token: " + next)
}

func (r *rotated) caChanged() {
	user := "token: " + r.newToken()
	r.begin(user)
	r.newServing()
	r.write(user)
	r.reconnect()
}

func (r *rotated) caChangedLate() {
	user := "token: " + r.newToken()
	r.begin(user)
	r.newServing()
	r.reconnect()
	r.mustWait("x509: certificate signed by unknown authority")
	r.write(user)
}

func (r *rotated) caFileChanged() { r.caInFile = true; r.caChanged() }

func (r *rotated) caFileGone() {
	r.caInFile = true
	user := "token: " + r.newToken()
	r.begin(user)
	must(r.T, os.Remove(filepath.Join(r.at, "ca.crt")))
	r.newServing()
	r.reconnect()
	r.mustWait("x509: certificate signed by unknown authority")
	r.file("ca.crt", []byte("no certificate"))
	r.mustWait("x509: certificate signed by unknown authority")
	r.write(user)
}

// begin lets a store with a kubeconfig of that user have a lease, and watch.
func (r *rotated) begin(user string) {
	r.Helper()
	r.write(user)
	var store *Store
	store, r.waits = r.open(r.T, Options{Kubeconfig: r.kubeconfig(), Node: r.node})
	acquire(r.T, store, r.want)
	w := watching(r.T, store)
	testwait.Until(r.T, "a snapshot", func() bool { return w.last().Local.Node != "" })
}

func (r *rotated) kubeconfig() string { return filepath.Join(r.at, "kubeconfig") }

// reconnect cuts all connections, as a restart of the API server does.
func (r *rotated) reconnect() { r.wire.Cut(); r.wire.Mend() }

// mustWait waits until the store says that it is held up by this.
func (r *rotated) mustWait(words string) {
	r.Helper()
	testwait.Nil(r.T, "a report with "+words, func() error {
		if !slices.ContainsFunc([]string{taskWatch, taskRead, taskPublish}, func(task string) bool { return r.waits.has(task, words) }) {
			return fmt.Errorf("reported is %+v", r.waits)
		}
		return nil
	})
}

// mustKeep alters the record, as somebody may, and waits for the store to write it again.
func (r *rotated) mustKeep() {
	r.Helper()
	r.annotate(r.T, r.node, map[string]any{"public-ip": "203.0.113.9"})
	testwait.Until(r.T, "the record as it was", func() bool {
		return r.server.node(r.T, r.node).Annotations[note+"public-ip"] == r.want.Stacks[0].Underlay.String()
	})
}

// file replaces a file at once.
func (r *rotated) file(name string, content []byte) {
	r.Helper()
	must(r.T, os.WriteFile(filepath.Join(r.at, "new"), content, 0o600))
	must(r.T, os.Rename(filepath.Join(r.at, "new"), filepath.Join(r.at, name)))
}

// write writes the kubeconfig of a user, with the CA that the API server has now.
func (r *rotated) write(user string) {
	r.Helper()
	ca := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(r.ca)
	if r.caInFile {
		r.file("ca.crt", r.ca)
		ca = "certificate-authority: " + filepath.Join(r.at, "ca.crt")
	}
	r.file("kubeconfig", kubeconfigOf("https://"+r.wire.Address, ca, user))
}

func kubeconfigOf(url, ca, user string) []byte {
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, %s}}]\n"+
		"users: [{name: u, user: {%s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", url, ca, user)
}

// certificate is a kubeconfig's user with a certificate.
func (r *rotated) certificate(ends time.Time) string {
	cert, key := r.people.Issue(r.T, agentUser, ends)
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("client-certificate-data: %s, client-key-data: %s", encode(cert), encode(key))
}

// newToken returns a token of the agent's service account, which is made if need be.
func (r *rotated) newToken() string {
	r.Helper()
	const path = "/api/v1/namespaces/default/serviceaccounts"
	r.post(r.T, path, map[string]any{"metadata": map[string]any{"name": r.account}})
	body := `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}`
	raw, err := r.admin.rest.Post().AbsPath(path, r.account, "token").SetHeader("Content-Type", "application/json").
		SetHeader("Accept", "application/json").Body([]byte(body)).Do(r.Context()).Raw()
	must(r.T, err)
	var answer struct{ Status struct{ Token string } }
	must(r.T, json.Unmarshal(raw, &answer))
	r.token = answer.Status.Token
	return r.token
}

// endToken ends all tokens of the service account, and returns a new one when the API server knows the old ones no more.
func (r *rotated) endToken() (next string) {
	r.Helper()
	old := r.token // the API server remembers for ten seconds that it was good
	must(r.T, r.admin.rest.Delete().AbsPath("/api/v1/namespaces/default/serviceaccounts", r.account).Do(r.Context()).Error())
	next = r.newToken()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	testwait.Nil(r.T, "the API server has forgotten the old token", func() error {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.api.URL()+"/api/v1/nodes/"+r.node, nil)
		must(r.T, err)
		req.Header.Set("Authorization", "Bearer "+old)
		resp, err := c.Do(req)
		if err == nil && resp.StatusCode != http.StatusUnauthorized {
			err = fmt.Errorf("it answers %s", resp.Status)
		}
		return err
	})
	return next
}

// newServing gives the API server a certificate of another CA, and returns when it has taken it.
func (r *rotated) newServing() {
	r.Helper()
	authority := controlplanetest.NewAuthority(r.T, "serving")
	cert, key := authority.Issue(r.T, "kube-apiserver", time.Now().Add(time.Hour))
	must(r.T, os.WriteFile(filepath.Join(r.dir, "tls.key"), key, 0o600))
	must(r.T, os.WriteFile(filepath.Join(r.dir, "tls.crt"), cert, 0o600))
	r.ca = authority.PEM
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.ca)
	testwait.Nil(r.T, "the API server has the new certificate", func() error {
		c, err := tls.Dial("tcp", strings.TrimPrefix(r.api.URL(), "https://"), &tls.Config{RootCAs: roots})
		if err == nil {
			c.Close()
		}
		return err
	})
	path := filepath.Join(r.dir, "admin-now")
	ca := "certificate-authority-data: " + base64.StdEncoding.EncodeToString(r.ca)
	must(r.T, os.WriteFile(path, kubeconfigOf(r.api.URL(), ca, "token: "+r.api.Token(controlplane.Admin)), 0o600))
	cfg, err := kubeclient.Server{Kubeconfig: path}.Config()
	must(r.T, err)
	r.admin, err = newAdmin(cfg)
	must(r.T, err)
}
