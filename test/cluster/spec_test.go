package cluster

import "testing"

// TestDefaultDir: the directory is in a place of the user's own, also without a HOME.
func TestDefaultDir(t *testing.T) {
	for _, c := range []struct{ home, cache, want string }{
		{"/home/a", "", "/home/a/.cache/twill/cluster"}, {"/home/a", "/cache", "/cache/twill/cluster"}, {"", "", "/root/.cache/twill/cluster"},
	} {
		t.Setenv("HOME", c.home)
		t.Setenv("XDG_CACHE_HOME", c.cache)
		if got := DefaultDir(); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}
