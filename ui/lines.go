package ui

import (
	"encoding/json"
	"errors"
	"net/http"
	"sync"
)

// lines is an answer of several JSON values, a line each, which a client reads while they come (NDJSON).
type lines struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	return &lines{w: w}
}

// send sends a value at once; nil sends an empty line, which says that the server is still there.
func (l *lines) send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var data []byte
	if v != nil {
		var err error
		if data, err = json.Marshal(v); err != nil {
			return err
		}
	}
	_, err := l.w.Write(append(data, '\n'))
	return errors.Join(err, http.NewResponseController(l.w).Flush())
}

// problem is the answer to a request that failed.
type problem struct {
	Error string `json:"error"`
}

// answer sends one value, or why there is none.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		fail(w, http.StatusBadGateway, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func fail(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(problem{text}) // the client has gone
}
