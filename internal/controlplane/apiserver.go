package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// APIServerConfig says how to run kube-apiserver. Dir and EtcdEndpoints are needed, the rest has defaults.
type APIServerConfig struct {
	Binary        string         // FindBinary("kube-apiserver")
	Dir           string         // keys, tokens, kubeconfigs, log; what is there is used again
	EtcdEndpoints []string       // client URLs
	Listen        netip.AddrPort // 127.0.0.1; port 0 takes a free one
	Advertise     netip.Addr     // how clients reach it, if Listen is 0.0.0.0 or ::; Listen's own else
	Names         []string       // further DNS names and addresses for the serving certificate
	ServiceCIDRs  []netip.Prefix // 10.96.0.0/16 or fd00:10:96::/112, in the family of Advertise
	Users         []User         // besides Admin
	Flags         []string       // go last, so that they win

	Progress func(string) // is told what the start is waiting for; may be nil
}

// APIServer is a running kube-apiserver process. Its certificate is verified; nobody skips that.
type APIServer struct {
	dir   string
	url   string
	ca    *authority
	users map[string]User
	proc  *process
	http  *http.Client
	took  time.Duration
}

// startLimit bounds a start in any case. It takes about five seconds on two idle cores.
const startLimit = 3 * time.Minute

// StartAPIServer starts kube-apiserver and returns when it is ready. ctx bounds the start only: Close ends the
// process, as does the end of this program. One that a crashed run left over in the same directory is ended first.
func StartAPIServer(ctx context.Context, cfg APIServerConfig) (*APIServer, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	started := time.Now()
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare kube-apiserver: %w", err)
	}
	if s.proc, err = startProcess(append([]string{cfg.Binary}, cfg.args()...), filepath.Join(cfg.Dir, logFile)); err != nil {
		return nil, err
	}
	if err := s.finishStart(ctx, cfg); err != nil {
		s.Close()
		return nil, err
	}
	s.took = time.Since(started)
	return s, nil
}

// prepare writes all files that the process reads.
func prepare(cfg APIServerConfig) (*APIServer, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := endLeftover(cfg.Dir); err != nil {
		return nil, err
	}
	ca, err := loadAuthority(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := ca.writeServing(cfg.Dir, cfg.servingNames()); err != nil {
		return nil, err
	}
	if _, err := loadKey(filepath.Join(cfg.Dir, "sa.key")); err != nil {
		return nil, err
	}
	users, err := loadTokens(filepath.Join(cfg.Dir, tokenFile), cfg.Users)
	if err != nil {
		return nil, err
	}
	s := &APIServer{dir: cfg.Dir, url: cfg.url(), ca: ca, users: users, http: newHTTP(ca)}
	return s, s.writeKubeconfigs()
}

func (s *APIServer) finishStart(ctx context.Context, cfg APIServerConfig) error {
	if err := s.saveState(); err != nil {
		return err
	}
	progress := cfg.Progress
	if progress == nil {
		progress = func(string) {}
	}
	return s.waitReady(ctx, progress)
}

// URL is https://host:port as clients reach it.
func (s *APIServer) URL() string { return s.url }

// Pid is the id of the process.
func (s *APIServer) Pid() int { return s.proc.Pid }

// Alive reports whether the process runs.
func (s *APIServer) Alive() bool { return s.proc.alive() }

// Token is the bearer token of Admin or of one of the configured users, and empty for anybody else.
func (s *APIServer) Token(user string) string { return s.users[user].Token }

// CA is the PEM certificate that the server's certificate verifies against.
func (s *APIServer) CA() []byte { return s.ca.pem }

// LogFile is where the process writes.
func (s *APIServer) LogFile() string { return filepath.Join(s.dir, logFile) }

// StartTook is how long StartAPIServer took until the server was ready.
func (s *APIServer) StartTook() time.Duration { return s.took }

// Close ends the process and returns when it is gone. Its directory stays, for a restart or for reading the log.
func (s *APIServer) Close() error {
	s.http.CloseIdleConnections()
	// What it stores is in etcd, so nothing is lost when it is killed; open watches would hold it for a minute.
	if err := s.proc.stop(stopGrace); err != nil {
		return fmt.Errorf("stop kube-apiserver: %w", err)
	}
	return removeState(s.dir, s.proc)
}

const stopGrace = 2 * time.Second

func freePort(addr netip.Addr) (uint16, error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port), nil
}
