package nfnl

import "testing"

// TestUserComment: a comment is found among other user data; what is cut short is none.
func TestUserComment(t *testing.T) {
	for data, want := range map[string]string{
		"": "", "\x00": "", "\x00\x03ab\x00": "ab", "\x01\x02xx\x00\x02a\x00": "a", "\x00\x04ab": "", "\x01\x01x": "",
		"\x02\x00\x00\x01\x00": "",
	} {
		if got := userComment([]byte(data)); got != want {
			t.Errorf("% x: %q, want %q", data, got, want)
		}
	}
}
