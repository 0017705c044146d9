// Package ui serves one page, on loopback, that shows a cluster's network: the map, what is wrong, a packet's way, the
// last hour, and in a lab faults and scripts to learn from. Documentation/ui.md describes the JSON that the page reads.
package ui

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/twill-net/twill/target"
)

// Schema is the version of the JSON. A member that is added does not change it.
const Schema = 1

// dist is the page, as tools/page makes it of the folder page.
//
//go:embed dist/index.html dist/page.css dist/page.js
var dist embed.FS

// Server serves the page of a source.
type Server struct {
	main  *feed
	room  Classroom // nil: none
	class class

	mu   sync.Mutex
	labs map[string]*feed // of scripts, by name
}

// New returns a server of a source. In a Lab a packet can be walked with, too; room is nil where nothing may be broken.
func New(s target.Source, room Classroom) *Server {
	return &Server{main: newFeed(s, askEvery), room: room, labs: map[string]*feed{}}
}

// Serve answers on a listener, which must be on loopback, until ctx ends. It calls ready with the address to open, whose
// token nobody else knows.
func (s *Server) Serve(ctx context.Context, l net.Listener, ready func(address string)) error {
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return fmt.Errorf("listen on %s: the page is served on loopback only, such as 127.0.0.1:0", l.Addr())
	}
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServerFS(files))
	s.register(mux)
	g := guard{token: newToken(), hosts: hostsOf(l.Addr()), next: mux}
	server := &http.Server{Handler: g, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	ready("http://" + l.Addr().String() + "/#" + g.token)
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// feedOf returns the feed that a request is about: that of a script's lab if the request names one.
func (s *Server) feedOf(r *http.Request) (*feed, error) {
	name := r.URL.Query().Get("of")
	if name == "" {
		return s.main, nil
	}
	if s.room == nil {
		return nil, fmt.Errorf("of=%s: only a lab's page shows other labs", name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.labs[name]; f != nil {
		return f, nil
	}
	f := newFeed(s.room.Open(name), askEvery)
	s.labs[name] = f
	return f, nil
}
