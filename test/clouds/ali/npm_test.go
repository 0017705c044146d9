package ali_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twill-net/twill/cloud"
)

// modules is the variable that names a folder with Alibaba's client for Node.js.
const modules = "ALICLOUD_NODE_MODULES"

// TestNode: Alibaba's client for Node.js makes, lists and deletes routes at the front, and sees what Twill's made.
func TestNode(t *testing.T) {
	folder := os.Getenv(modules)
	if folder == "" {
		t.Skipf("%s names no folder with Alibaba's client for Node.js: npm install --prefix DIR @alicloud/vpc20160428@7.3.2; %s=DIR/node_modules",
			modules, modules)
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skipf("there is no Node.js: %v", err)
	}
	if _, err := os.Stat(filepath.Join(folder, "@alicloud", "vpc20160428")); err != nil {
		t.Skipf("%s has no @alicloud/vpc20160428: %v", folder, err)
	}
	f := newFront(t)
	if err := f.node.Apply(t.Context(), f.self, cloud.Change{Op: cloud.Create, Route: route("10.244.1.0/24", "i-1")}); err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), node, "testdata/vpc.js", strings.TrimPrefix(f.url, "http://"))
	script.Env = append(os.Environ(), "NODE_PATH="+folder, "KEY_ID="+keyID, "KEY_SECRET="+keySecret)
	script.Stderr = &strings.Builder{}
	out, err := script.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, script.Stderr)
	}
	var said struct {
		ID, Twice, Table string
		Before, After    []string
		Tables           int
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	got := fmt.Sprintf("%v %s %v %s %d", said.Before, said.Twice, said.After, said.Table, said.Tables)
	want := "[10.244.1.0/24 i-1 Available 10.244.9.0/24 i-2 Available] InvalidCIDRBlock.Duplicate [10.244.1.0/24 i-1 Available] vtb-main 1"
	if got != want || said.ID == "" {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
