package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/twill-net/twill/doctor"
	"github.com/twill-net/twill/lab/walk"
	"github.com/twill-net/twill/target"
)

// maxBody is how many bytes a request may have: saved traces come back in one.
const maxBody = 8 << 20

func (s *Server) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/view", s.view)
	mux.HandleFunc("GET /api/updates", s.updates)
	mux.HandleFunc("GET /api/history", s.history)
	mux.HandleFunc("POST /api/doctor", post(s, s.doctor))
	mux.HandleFunc("POST /api/trace", post(s, s.trace))
	mux.HandleFunc("POST /api/walk", post(s, s.walk))
	mux.HandleFunc("POST /api/save", s.save)
	s.registerLessons(mux)
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, fmt.Sprintf("there is no %s %s", r.Method, r.URL.Path))
	})
}

// post returns a handler of requests with a JSON body of the type Q.
func post[Q any](s *Server, do func(context.Context, target.Source, Q) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var q Q
		if err := decode(w, r, &q); err != nil {
			fail(w, http.StatusBadRequest, err.Error())
			return
		}
		f, err := s.feedOf(r)
		if err != nil {
			fail(w, http.StatusNotFound, err.Error())
			return
		}
		v, err := do(r.Context(), f.source, q)
		answer(w, v, err)
	}
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the request's JSON: %w", err)
	}
	return nil
}

func (s *Server) view(w http.ResponseWriter, r *http.Request) {
	f, err := s.feedOf(r)
	if err != nil {
		fail(w, http.StatusNotFound, err.Error())
		return
	}
	answer(w, viewOf(f.source), nil)
}

// viewOf returns what a source is, as the page reads it.
func viewOf(s target.Source) target.View {
	v := s.View()
	v.Schema, v.Titles = Schema, map[string]string{}
	for _, k := range doctor.Catalogue() {
		v.Titles[k.ID] = k.Title
	}
	return v
}

func (s *Server) updates(w http.ResponseWriter, r *http.Request) {
	f, err := s.feedOf(r)
	if err != nil {
		fail(w, http.StatusNotFound, err.Error())
		return
	}
	out := newLines(w)
	_ = f.follow(r.Context(), func(u *Update) error { // it ends when the client goes
		if u == nil {
			return out.send(nil)
		}
		return out.send(u)
	})
}

func (s *Server) history(w http.ResponseWriter, r *http.Request) {
	since := time.Hour
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = time.ParseDuration(text); err != nil || since <= 0 {
			fail(w, http.StatusBadRequest, fmt.Sprintf("since=%s: want a time such as 1h", text))
			return
		}
	}
	f, err := s.feedOf(r)
	if err != nil {
		fail(w, http.StatusNotFound, err.Error())
		return
	}
	report, err := f.source.History(r.Context(), since)
	f.remember(&report, time.Now().Add(-since))
	answer(w, report, err)
}

type doctorQuery struct {
	Probe bool `json:"probe"`
}

func (s *Server) doctor(ctx context.Context, from target.Source, q doctorQuery) (any, error) {
	probe := doctor.PeerProbes
	if q.Probe {
		probe = doctor.AllProbes
	}
	return from.Doctor(ctx, probe)
}

// watching is how long real packets are watched.
const watching = 3 * time.Second

type traceQuery struct {
	From string `json:"from"`
	To   string `json:"to"`
	Live bool   `json:"live"`
}

func (s *Server) trace(ctx context.Context, from target.Source, q traceQuery) (any, error) {
	return from.Trace(ctx, q.From, q.To, target.Tracing{Probe: true, Live: q.Live, During: watching})
}

// walker is a source that captures a packet on every device: a lab.
type walker interface {
	Walk(ctx context.Context, from, to string, ipv6 bool) (walk.Path, error)
}

type walkQuery struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Family string `json:"family"` // ipv4, ipv6; empty: the lab's first
}

func (s *Server) walk(ctx context.Context, from target.Source, q walkQuery) (any, error) {
	l, ok := from.(walker)
	if !ok {
		return nil, errors.New("only in a lab a packet is captured on every device: trace follows it elsewhere")
	}
	if q.Family != "" && q.Family != "ipv4" && q.Family != "ipv6" {
		return nil, fmt.Errorf("family %q: want ipv4 or ipv6", q.Family)
	}
	return l.Walk(ctx, q.From, q.To, q.Family == "ipv6")
}
