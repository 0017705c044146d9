package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/twill-net/twill/internal/controlplane"
	"github.com/twill-net/twill/internal/controlplane/controlplanetest"
	"github.com/twill-net/twill/internal/testwait"
	"github.com/twill-net/twill/subnet"
)

var (
	past   = time.Now().Add(-time.Hour)
	future = time.Now().Add(time.Hour)
)

// secured is a real etcd that asks for client certificates, and a Store whose files a test replaces.
type secured struct {
	*testing.T
	dir, url string
	ca       *controlplanetest.Authority // that signs etcd's own certificate, and clients'
	process  *exec.Cmd
	key      string // of the Store's lease

	mu      sync.Mutex
	reports []string
}

func startSecured(t *testing.T) *secured {
	t.Helper()
	controlplanetest.Binary(t, "etcd")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &secured{T: t, dir: t.TempDir(), url: "https://" + l.Addr().String(), ca: controlplanetest.NewAuthority(t, "first")}
	s.renewClient(future)
	s.trust()
	l.Close()
	s.restart()
	t.Cleanup(s.stop)
	return s
}

func (s *secured) path(name string) string { return filepath.Join(s.dir, name) }

// write replaces a file at once, as what rotates certificates does.
func (s *secured) write(name string, content []byte) {
	s.Helper()
	if err := os.WriteFile(s.path("new"), content, 0o600); err != nil {
		s.Fatal(err)
	}
	if err := os.Rename(s.path("new"), s.path(name)); err != nil {
		s.Fatal(err)
	}
}

// renewClient writes the agent's certificate anew.
func (s *secured) renewClient(ends time.Time) {
	s.Helper()
	cert, key := s.ca.Issue(s, "twilld", ends)
	s.write("client.key", key)
	s.write("client.crt", cert)
}

// trust writes the agent's CA anew.
func (s *secured) trust() { s.Helper(); s.write("ca.crt", s.ca.PEM) }

func (s *secured) rename(from, to string) {
	s.Helper()
	if err := os.Rename(s.path(from), s.path(to)); err != nil {
		s.Fatal(err)
	}
}

func (s *secured) stop() {
	if s.process != nil {
		_ = s.process.Process.Kill()
		_ = s.process.Wait()
		s.process = nil
	}
}

// restart starts etcd anew, with a certificate of what is the CA now, and waits until it answers.
func (s *secured) restart() {
	s.Helper()
	s.start(future)
	admin := s.admin()
	testwait.Nil(s, "etcd answers its administrator", func() error {
		ctx, cancel := context.WithTimeout(s.Context(), callTimeout)
		defer cancel()
		_, err := admin.Get(ctx, "x")
		return err
	})
}

// start starts etcd anew, with a certificate that ends then.
func (s *secured) start(ends time.Time) {
	s.Helper()
	s.stop()
	cert, key := s.ca.Issue(s, "etcd", ends)
	s.write("server.crt", cert)
	s.write("server.key", key)
	s.write("server-ca.crt", s.ca.PEM)
	command, err := controlplane.EtcdCommand(s.dir, s.url)
	if err != nil {
		s.Fatal(err)
	}
	command = append(command, "--client-cert-auth", "--trusted-ca-file="+s.path("server-ca.crt"),
		"--cert-file="+s.path("server.crt"), "--key-file="+s.path("server.key"))
	s.process = exec.Command(command[0], command[1:]...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.process.Start(); err != nil {
		s.Fatal(err)
	}
}

// admin is a client with a certificate of its own.
func (s *secured) admin() *clientv3.Client {
	s.Helper()
	pair, err := tls.X509KeyPair(s.ca.Issue(s, "admin", future))
	if err != nil {
		s.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.ca.PEM)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.url}, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// lease lets a Store with these files have a lease and watch, and returns its key.
func (s *secured) lease() (key string) {
	s.Helper()
	store, err := New(Options{Endpoints: []string{s.url}, Pools: []subnet.Pool{v4},
		CAFile: s.path("ca.crt"), CertFile: s.path("client.crt"), KeyFile: s.path("client.key"), Report: s.report})
	if err != nil {
		s.Fatal(err)
	}
	store.recheck = time.Second
	l := acquire(s.T, store, lease(1))
	ctx, cancel := context.WithCancel(context.Background())
	done, first := make(chan error, 1), make(chan struct{}, 1)
	go func() {
		done <- store.Watch(ctx, func(subnet.Snapshot) {
			select {
			case first <- struct{}{}:
			default:
			}
		})
	}()
	s.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.Error(err)
		}
		_ = store.Close()
	})
	<-first
	return store.dir + formatName(l)
}

func (s *secured) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports = append(s.reports, err.Error())
}

// mustReport waits for a report with these words.
func (s *secured) mustReport(words string) {
	s.Helper()
	testwait.Nil(s, "a report with "+words, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.reports {
			if strings.Contains(r, words) {
				return nil
			}
		}
		return fmt.Errorf("reported is %q", s.reports)
	})
}

// mustKeep deletes the lease, as somebody may, and waits for the Store to write it again.
func (s *secured) mustKeep(key string) {
	s.Helper()
	admin := s.admin()
	if r, err := admin.Delete(s.Context(), key); err != nil || r.Deleted != 1 {
		s.Fatalf("delete %s: %+v, %v", key, r, err)
	}
	testwait.Nil(s, "the lease is written again", func() error {
		r, err := admin.Get(s.Context(), key)
		if err == nil && len(r.Kvs) == 0 {
			s.mu.Lock()
			defer s.mu.Unlock()
			err = fmt.Errorf("no key %s; reported is %q", key, s.reports)
		}
		return err
	})
}

// TestCredentials: each file of TLS that is rotated, ends, or goes and comes back while the Store runs. Etcd is started
// again, which ends all connections; then the Store keeps its lease, or says why it cannot until it can.
func TestCredentials(t *testing.T) {
	ca2 := controlplanetest.NewAuthority(t, "second")
	for name, run := range map[string]func(s *secured){
		"client certificate rotated": func(s *secured) { s.renewClient(future); s.restart() },
		"client certificate expired": func(s *secured) {
			s.renewClient(past)
			s.restart()
			s.mustReport("etcd-certfile's certificate \"twilld\" ended at")
			s.mustReport("remote error: tls: ")
			s.renewClient(future)
		},
		"client certificate gone and back": func(s *secured) {
			s.rename("client.crt", "away")
			s.restart()
			s.mustKeep(s.key)
			s.rename("away", "client.crt")
		},
		"client key of another certificate": func(s *secured) { // somebody is replacing both
			_, key := s.ca.Issue(s, "twilld", future)
			s.write("client.key", key)
			s.restart()
			s.mustKeep(s.key)
			s.renewClient(future)
		},
		"CA changed": func(s *secured) { s.ca = ca2; s.trust(); s.renewClient(future); s.restart() },
		"CA changed, late": func(s *secured) {
			s.ca = ca2
			s.restart()
			s.mustReport("x509: certificate signed by unknown authority")
			s.trust()
			s.mustReport("remote error: tls: ")
			s.renewClient(future)
		},
		"CA gone and back": func(s *secured) {
			s.rename("ca.crt", "away")
			s.restart()
			s.mustKeep(s.key)
			s.rename("away", "ca.crt")
		},
		"CA empty and back": func(s *secured) {
			s.write("ca.crt", nil)
			s.restart()
			s.mustKeep(s.key)
			s.trust()
		},
		"server certificate expired": func(s *secured) {
			s.start(past)
			s.mustReport("x509: certificate has expired")
			s.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startSecured(t)
			s.key = s.lease()
			run(s)
			s.mustKeep(s.key)
		})
	}
}

// TestPipe: a pipe in the place of a file is an error at once, and no handshake waits for who writes to it.
func TestPipe(t *testing.T) {
	dir := t.TempDir()
	cert, key := controlplanetest.NewAuthority(t, "first").Issue(t, "twilld", future)
	for name, content := range map[string][]byte{"client.crt": cert, "client.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, o := range map[string]Options{
		"etcd-certfile": {CertFile: pipe, KeyFile: filepath.Join(dir, "client.key")},
		"etcd-keyfile":  {CertFile: filepath.Join(dir, "client.crt"), KeyFile: pipe},
	} {
		said := make(chan error, 1)
		go func() {
			_, err := o.tls()
			said <- err
		}()
		testwait.Until(t, flag+" that is a pipe is an error", func() bool { return len(said) > 0 })
		if err := <-said; err == nil || !strings.Contains(err.Error(), pipe+": it is a named pipe") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
