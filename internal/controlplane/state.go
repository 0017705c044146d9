package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const stateFile = "apiserver.json"

// state is what a later program needs to find the process again.
type state struct {
	URL     string   `json:"url"`
	Process *process `json:"process"`
}

// OpenAPIServer returns the API server that an earlier program started in dir and left running, and an error that
// is fs.ErrNotExist when none was, or when it was closed. Alive reports whether its process still runs.
func OpenAPIServer(dir string) (*APIServer, error) {
	st, err := readState(dir)
	if err != nil {
		return nil, fmt.Errorf("open API server in %s: %w", dir, err)
	}
	ca, err := loadAuthority(dir)
	if err != nil {
		return nil, err
	}
	users, err := readTokens(filepath.Join(dir, tokenFile))
	if err != nil {
		return nil, err
	}
	return &APIServer{dir: dir, url: st.URL, ca: ca, users: users, proc: st.Process, http: newHTTP(ca)}, nil
}

func endLeftover(dir string) error {
	st, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := st.Process.stop(stopGrace); err != nil {
		return fmt.Errorf("end the one of an earlier run: %w", err)
	}
	return removeState(dir, st.Process)
}

func readState(dir string) (state, error) {
	var st state
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", stateFile, err)
	}
	if st.Process == nil || st.Process.Pid <= 1 {
		return st, fmt.Errorf("read %s: it names no process", stateFile)
	}
	return st, nil
}

func (s *APIServer) saveState() error {
	data, err := json.Marshal(state{URL: s.url, Process: s.proc})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, stateFile), data, 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// removeState leaves the file alone when it tells of a successor of the process.
func removeState(dir string, p *process) error {
	st, err := readState(dir)
	if err == nil && (st.Process.Pid != p.Pid || st.Process.Started != p.Started) {
		return nil
	}
	if err := os.Remove(filepath.Join(dir, stateFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}
