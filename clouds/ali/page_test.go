package ali_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/twill-net/twill/clouds/ali"
)

// TestPage: the page's policy is what TestPermissions and TestDenied enforce.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../Documentation/backends/ali-vpc.md")
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Statement []struct{ Action []string }
	}
	if err := json.Unmarshal(regexp.MustCompile(`(?s)\{"Version".*?\]\}\]\}`).Find(page), &policy); err != nil {
		t.Fatal(err)
	}
	if len(policy.Statement) != 1 || !slices.Equal(policy.Statement[0].Action, ali.Permissions) {
		t.Errorf("%+v, want %v", policy, ali.Permissions)
	}
}
