package ui

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/twill-net/twill/target"
)

// Classroom is a lab in which things may be broken to learn from them: a lab.
type Classroom interface {
	// Faults returns what can be broken here.
	Faults() ([]Fault, error)
	// Inject breaks something, waits until it has healed, and tells meanwhile what is going on. A fault that no agent
	// heals is taken back.
	Inject(ctx context.Context, o Order, say func(text string)) (Injury, error)
	// Scripts returns the lab scripts, in an order to learn from.
	Scripts() ([]Script, error)
	// Script returns a script's text.
	Script(name string) (string, error)
	// Run runs a script in a lab of its own, and calls before with each line before it runs.
	Run(ctx context.Context, name string, before func(Line) error) error
	// Open returns the lab of that name.
	Open(name string) target.Source
}

// Fault is something that can be broken.
type Fault struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Heals       bool   `json:"heals"`    // a running agent mends it
	Lossless    bool   `json:"lossless"` // no packet between pods is lost
}

// Order says what to break, and where.
type Order struct {
	Name string `json:"name"` // a fault's
	Node string `json:"node"`
	Peer string `json:"peer"` // empty: any
}

// Injury is what became of a fault.
type Injury struct {
	Healed bool    `json:"healed"` // by the agent, in MS milliseconds
	MS     float64 `json:"ms"`
	Text   string  `json:"text"`
}

// Script is a lab script.
type Script struct {
	Name     string   `json:"name"`
	Title    string   `json:"title"`
	Group    string   `json:"group"` // scripts of a group stand together
	Sections []string `json:"sections"`
}

// Line is what a script is about to run, or what came of it.
type Line struct {
	Line    int    `json:"line,omitempty"` // from 1
	Section string `json:"section,omitempty"`
	Command string `json:"command,omitempty"`
	Check   bool   `json:"check,omitempty"`   // the command looks at what the one before has done
	Text    string `json:"text,omitempty"`    // what a command printed
	Picture string `json:"picture,omitempty"` // what a command drew, as SVG
	Lab     string `json:"lab,omitempty"`     // the script's
	Waiting bool   `json:"waiting,omitempty"`
	Done    bool   `json:"done,omitempty"`
	Error   string `json:"error,omitempty"`
}

// class is the one lesson that goes on.
type class struct {
	mu   sync.Mutex
	stop context.CancelFunc // nil: none
	next chan string        // to go on: one step, or to a section
}

var errLesson = errors.New("another script or fault is still running: stop it, or wait for its end")

// begin begins a lesson. It ends with the request, and by end.
func (c *class) begin(r *http.Request) (ctx context.Context, next <-chan string, end func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stop != nil {
		return nil, nil, nil, errLesson
	}
	ctx, cancel := context.WithCancel(r.Context())
	c.stop, c.next = cancel, make(chan string, 1)
	return ctx, c.next, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stop = nil
	}, nil
}

func (s *Server) registerLessons(mux *http.ServeMux) {
	for pattern, do := range map[string]func(http.ResponseWriter, *http.Request){
		"GET /api/faults": s.faults, "POST /api/fault": s.inject, "GET /api/scripts": s.scripts,
		"GET /api/script": s.script, "POST /api/script": s.run, "POST /api/next": s.next, "POST /api/stop": s.stop,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if s.room == nil {
				fail(w, http.StatusNotFound, "only a lab has faults and scripts")
				return
			}
			do(w, r)
		})
	}
}

func (s *Server) faults(w http.ResponseWriter, _ *http.Request) {
	all, err := s.room.Faults()
	answer(w, list(all), err)
}

func (s *Server) scripts(w http.ResponseWriter, _ *http.Request) {
	all, err := s.room.Scripts()
	answer(w, list(all), err)
}

func (s *Server) script(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	text, err := s.room.Script(name)
	answer(w, struct {
		Name string `json:"name"`
		Text string `json:"text"`
	}{name, text}, err)
}

func (s *Server) inject(w http.ResponseWriter, r *http.Request) {
	var o Order
	if err := decode(w, r, &o); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, _, end, err := s.class.begin(r)
	if err != nil {
		fail(w, http.StatusConflict, err.Error())
		return
	}
	defer end()
	out := newLines(w)
	injury, err := s.room.Inject(ctx, o, func(text string) { _ = out.send(Line{Text: text}) })
	if err != nil {
		_ = out.send(Line{Error: err.Error()})
		return
	}
	_ = out.send(struct {
		Done bool `json:"done"`
		Injury
	}{true, injury})
}

type runQuery struct {
	Name string `json:"name"`
	Step bool   `json:"step"` // wait before each command that is no check, until POST /api/next
}

// goOn says how far a script goes on.
type goOn struct {
	Section string `json:"section"` // to the first command of it; empty: one step
}

func (s *Server) run(w http.ResponseWriter, r *http.Request) {
	var q runQuery
	if err := decode(w, r, &q); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, next, end, err := s.class.begin(r)
	if err != nil {
		fail(w, http.StatusConflict, err.Error())
		return
	}
	defer end()
	out, section := newLines(w), ""
	err = s.room.Run(ctx, q.Name, func(l Line) error {
		if err := out.send(l); err != nil || !q.Step || l.Command == "" || l.Check || section != "" && l.Section != section {
			return err
		}
		if err := out.send(Line{Line: l.Line, Waiting: true}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case section = <-next:
			return nil
		}
	})
	if err != nil {
		_ = out.send(Line{Error: err.Error()})
		return
	}
	_ = out.send(Line{Done: true})
}

// next lets a script that waits go on.
func (s *Server) next(w http.ResponseWriter, r *http.Request) {
	var to goOn
	if err := decode(w, r, &to); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	s.class.mu.Lock()
	defer s.class.mu.Unlock()
	if s.class.stop == nil {
		fail(w, http.StatusConflict, "no script is running")
		return
	}
	select {
	case s.class.next <- to.Section:
	default: // it has not begun to wait, and will not
	}
	answer(w, struct{}{}, nil)
}

// stop ends the lesson that goes on. What a script made is removed.
func (s *Server) stop(w http.ResponseWriter, _ *http.Request) {
	s.class.mu.Lock()
	defer s.class.mu.Unlock()
	if s.class.stop == nil {
		fail(w, http.StatusConflict, "no script is running")
		return
	}
	s.class.stop()
	answer(w, struct{}{}, nil)
}
