package ipsec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/twill-net/twill/backend"
)

// Require implements backend.Requirer.
func (b Backend) Require() error {
	_, err := find()
	return err
}

// Prepare has nothing to do before the lease is published.
func (b Backend) Prepare(context.Context, backend.Env) error { return nil }

// programs are where distributions have charon. charon-systemd comes first because it has no pid file, of
// which there can be one on a machine only; it runs without systemd.
var programs = []string{
	"/usr/sbin/charon-systemd",
	"charon",
	"/usr/lib/strongswan/charon",
	"/usr/lib/ipsec/charon",
	"/usr/libexec/strongswan/charon",
	"/usr/libexec/ipsec/charon",
}

func find() (string, error) {
	for _, p := range programs {
		if path, err := exec.LookPath(p); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf(
		"the backend ipsec needs strongSwan's charon, and none is installed (it is in the variant -full of Twill's image): looked for %s",
		strings.Join(programs, ", "),
	)
}

// settings are charon's strongswan.conf: only what is needed is loaded, the routes and policies are Twill's.
// charon-systemd reads a section of its own name.
const settings = `%s {
  load = random nonce drbg aes sha1 sha2 hmac kdf gcm gmp openssl kernel-netlink socket-default vici
  install_routes = no
  install_virtual_ip = no
  plugins { vici { socket = unix://%s } }
  filelog { stderr { default = 0 } }
}
`

// tail keeps the end of what is written to it.
type tail []byte

// tailSize is in bytes.
const tailSize = 500

func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-tailSize):]
	return len(p), nil
}

// daemon is a running charon.
type daemon struct {
	*exec.Cmd
	log   tail
	ended chan struct{}
}

// start runs charon. It ends with this process, without telling its peers: their and this kernel's security
// associations go on, and the next charon makes new ones beside them.
func start(dir string) (*daemon, error) {
	path, err := find()
	if err != nil {
		return nil, err
	}
	socket, conf := filepath.Join(dir, "charon.vici"), filepath.Join(dir, "strongswan.conf")
	text := fmt.Sprintf(settings, "charon", socket) + fmt.Sprintf(settings, "charon-systemd", socket)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	d := &daemon{Cmd: exec.Command(path), ended: make(chan struct{})}
	d.Env = append(os.Environ(), "STRONGSWAN_CONF="+conf)
	d.Stderr, d.Stdout = &d.log, &d.log
	d.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.Start(); err != nil {
		return nil, fmt.Errorf("start charon: %w", err)
	}
	go func() {
		_ = d.Wait() // how it ended does not matter: it has to run
		close(d.ended)
	}()
	return d, nil
}

func (d *daemon) stop() {
	_ = d.Process.Kill()
	<-d.ended
}

// failure is why charon ended, as far as it said.
func (d *daemon) failure() error {
	<-d.ended
	return fmt.Errorf("charon has ended (%s): %s", d.ProcessState, bytes.TrimSpace(d.log))
}

// explain is the end of charon, if that is why it did not answer, or else err.
func (d *daemon) explain(err error) error {
	select {
	case <-d.ended:
		return d.failure()
	case <-time.After(time.Second): // the connection ends before the process
		return err
	}
}

// patience is how long charon may take to answer after its start.
const patience = 15 * time.Second

// connect waits until charon answers.
func (d *daemon) connect(ctx context.Context, dir string) (session, error) {
	tick, late := time.NewTicker(50*time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		s, err := vici.NewSession(vici.WithSocketPath(filepath.Join(dir, "charon.vici")))
		if err == nil {
			return session{s}, nil
		}
		select {
		case <-ctx.Done():
			return session{}, ctx.Err()
		case <-d.ended:
			return session{}, d.failure()
		case <-late:
			return session{}, fmt.Errorf(
				"charon does not answer within %s, has it its plugin vici (Debian: strongswan-swanctl)? %w",
				patience,
				err,
			)
		case <-tick.C:
		}
	}
}

// checkEvery is how often tunnels that charon gave up are looked for.
const checkEvery = 10 * time.Second

// revive begins anew what charon has given up, and says so.
func (b Backend) revive(env backend.Env, s session, want map[string]connection) error {
	missing, err := s.missing(want)
	if err != nil || len(missing) == 0 {
		return err
	}
	for _, c := range missing {
		env.Log.Error("a peer has no IPsec tunnel, no packet passes", "via", c.there.String(),
			"err", fmt.Errorf("neither %s nor this node's charon keeps one, trying again", c.there))
	}
	return b.initiate(s, missing)
}

// Run keeps charon running and its connections as the views ask, until ctx is done.
func (b Backend) Run(ctx context.Context, env backend.Env, views <-chan backend.Input) error {
	d, err := start(env.Dir)
	if err != nil {
		return err
	}
	defer d.stop()
	s, err := d.connect(ctx, env.Dir)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer s.Close()
	if err := s.call("load-shared", sharedKey{"twill", "IKE", b.options.PSK}); err != nil {
		return d.explain(err)
	}
	env.Log.Info("charon exchanges the keys", "program", d.Path)
	again := time.NewTicker(checkEvery)
	defer again.Stop()
	want := map[string]connection{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.ended:
			return d.failure()
		case view := <-views:
			want = b.connections(view)
			if err := b.sync(s, want); err != nil {
				return d.explain(err)
			}
		case <-again.C:
			if err := b.revive(env, s, want); err != nil {
				return d.explain(err)
			}
		}
	}
}
