package keptfile

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// merge keeps lines that others added, in a file that ends with a dot.
func merge(content, have []byte) ([]byte, bool) {
	if !strings.HasSuffix(string(have), ".") {
		return nil, false
	}
	if strings.Contains(string(have), string(content)) {
		return have, true
	}
	return append(content, have...), true
}

func (s *stand) share(content string) {
	s.Helper()
	s.must(s.keeper.Share(s.path, 0o644, text(content), merge))
}

func (s *stand) put(data string) {
	s.Helper()
	s.must(os.WriteFile(s.path, []byte(data), 0o644))
}

func (s *stand) holds(want string) {
	s.Helper()
	if have, err := os.ReadFile(s.path); err != nil || string(have) != want {
		s.Errorf("the file holds %q, %v; want %q", have, err, want)
	}
}

// TestShare: what others add stays, what they take out of ours is put back, and what they left half written, or
// deleted, gets half a second.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.share("ours.")
		s.put("ours. theirs.")
		if !s.keeper.Check() {
			t.Error("what they added is not in order")
		}
		s.share("ours.")
		s.holds("ours. theirs.")
		s.put(" theirs.")
		s.keeper.Check()
		s.holds("ours. theirs.")
		if n := s.log.count("put a file back"); n != 1 {
			t.Errorf("%d lines tell that it was put back, want one", n)
		}
		for _, half := range []func(){func() { s.put("") }, func() { s.put("ou") }, func() { s.must(os.Remove(s.path)) }} {
			half()
			before, _ := os.ReadFile(s.path)
			for range 3 {
				s.keeper.Check()
				s.share("ours.")
				time.Sleep(settle / 4)
			}
			if after, _ := os.ReadFile(s.path); string(after) != string(before) {
				t.Errorf("after %q it holds %q at once", before, after)
			}
			s.put("ours. others.")
			if !s.keeper.Check() {
				t.Error("what they finished is not in order")
			}
			half()
			s.keeper.Check()
			time.Sleep(settle)
			s.keeper.Check()
			s.holds("ours. others.")
		}
		s.share("ours, newly.")
		s.holds("ours, newly.ours. others.")
	})
}
